//! What the package passes for forwards and backward passes: the variables of its folder `_ddp`, and functions for what
//! is rare.

use std::cell::OnceCell;

use crate::object::{Attribute, Owned, Ref};
use crate::paths::Paths;

type Static = Ref<'static>;

/// Declares the names of attributes and variables.
macro_rules! names {
    ($($name:ident: $text:literal)*) => {
        /// Names of attributes and variables.
        pub(crate) struct Names { $(pub(crate) $name: Static),* }

        impl Names {
            fn new() -> Option<Self> {
                Some(Self { $($name: Owned::name($text)?.leak()),* })
            }
        }
    };
}

names! {
    automatic: c"_automatic"
    check_finalized: c"_check_reducer_finalized"
    drawn: c"_drawn"
    hooked: c"_hooked"
    last: c"_last"
    last_input: c"_last_input"
    queue_callback: c"_queue_callback"
    reducer: c"reducer"
    stepper: c"_stepper"
    sync: c"require_backward_grad_sync"
    training: c"training"
    versions: c"_versions"
    waits: c"_waits"
    watched: c"_watched"
}

/// Declares the attributes of a class of the package.
macro_rules! members {
    ($class:ident: $($name:ident: $text:literal)*) => {
        /// Attributes of a class of the package.
        pub(crate) struct $class { $(pub(crate) $name: Attribute),* }

        impl $class {
            pub(crate) fn new(class: Ref<'_>) -> Option<Self> {
                Some(Self { $($name: Attribute::of_class(class, $text)?),* })
            }
        }
    };
}

members! { Model:
    compared: c"compared"
    finished: c"finished"
    forward: c"forward"
    is_plain: c"is_plain"
    outside: c"outside"
    reference: c"reference"
    synchronizes: c"synchronizes"
}

members! { Group:
    generation: c"generation"
    is_native: c"is_native"
    number: c"number"
    reference: c"reference"
}

/// What the package passes for forwards and backward passes.
pub(crate) struct Training {
    pub(crate) names: Names,
    pub(crate) members: Model,
    pub(crate) paths: Paths,
    /// The variables of `_patch.py`, `_data.py` and `_buckets.py`.
    pub(crate) steps: Static,
    pub(crate) inputs: Static,
    pub(crate) buckets: Static,
    /// The engine's method, unless a program has replaced the variable.
    pub(crate) queue_callback: Static,
    /// The models, also by the id of their module.
    pub(crate) models: Static,
    pub(crate) by_module: Static,
    /// One entry per running backward.
    pub(crate) running: Static,
    /// `torch.is_grad_enabled`
    pub(crate) grad_enabled: Static,
    /// `torch.Tensor._version`
    pub(crate) version_of: Attribute,
    /// `(module, inputs, kwargs)`: records a forward.
    pub(crate) forward: Static,
    /// `(inputs, kwargs)` → whether the previous forward had the same input.
    pub(crate) is_repeated: Static,
    /// `(module)` → flags
    pub(crate) update_flags: Static,
    /// `(frame)` → site
    pub(crate) path_of: Static,
    /// `(model, module, frame)`: compares the replicas of a model.
    pub(crate) compare: Static,
    /// `(model)`: called before a backward without a forward of this model.
    pub(crate) begins_outside: Static,
    /// `(model, module, frame)`: called after a backward.
    pub(crate) check_model: Static,
    /// `(exception, frame)`: records an exception that leaves a backward.
    pub(crate) backward_raised: Static,
    /// The original of `_engine_run_backward`, once it is replaced.
    pub(crate) original_backward: OnceCell<Static>,
}

impl Training {
    pub(crate) fn new(passed: Ref<'_>) -> Option<Self> {
        let kept = |name| passed.entry(name).map(Owned::leak);
        Some(Self {
            names: Names::new()?,
            members: Model::new(passed.entry(c"model")?.as_ref())?,
            paths: Paths::new(),
            steps: kept(c"steps")?,
            inputs: kept(c"inputs")?,
            buckets: kept(c"buckets")?,
            queue_callback: kept(c"queue_callback")?,
            models: kept(c"models")?,
            by_module: kept(c"by_module")?,
            running: kept(c"running")?,
            grad_enabled: kept(c"grad_enabled")?,
            version_of: Attribute::new(c"_version", kept(c"version_of")?)?,
            forward: kept(c"forward")?,
            is_repeated: kept(c"is_repeated")?,
            update_flags: kept(c"update_flags")?,
            path_of: kept(c"path_of")?,
            compare: kept(c"compare")?,
            begins_outside: kept(c"begins_outside")?,
            check_model: kept(c"check_model")?,
            backward_raised: kept(c"backward_raised")?,
            original_backward: OnceCell::new(),
        })
    }
}
