//! Enum values of calls, types and records. Their numbers never change their meaning; their names
//! are shown to users.
//!
//! The numbers are those of `vocabulary.proto`; a test compares the two.

/// Layer of the calls that a program makes to NCCL directly, and name of the communicators of NCCL.
pub const NCCL_LAYER: &str = "nccl";

/// Declares an enum whose values take one byte in a black box and have a display name.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            /// Not specified, or unknown.
            #[default]
            Unspecified = 0,
            $($(#[$vmeta])* $variant = $number,)*
        }

        impl $name {
            /// Every value but `Unspecified`, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value with this number; an unknown number is `Unspecified`.
            #[inline]
            #[must_use]
            pub const fn from_number(number: u8) -> Self {
                // A table, since a `match` would be a jump for each enum of a recorded call.
                const VALUES: [$name; 256] = {
                    let mut values = [$name::Unspecified; 256];
                    $(values[$number] = $name::$variant;)*
                    values
                };
                VALUES[number as usize]
            }

            /// Number of the value in files and messages.
            #[must_use]
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// Display name; `None` for `Unspecified`.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    Self::Unspecified => None,
                    $(Self::$variant => Some($text),)*
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == Some(name))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name().unwrap_or("unknown"))
            }
        }
    };
}

/// Declares the operations: number, name, the ranks that a call waits for, and further facts.
macro_rules! ops {
    ($($(#[$meta:meta])* $variant:ident = $number:literal, $text:literal, $direction:ident $($fact:ident)*;)*) => {
        words! {
            /// Operation of a call. Variants that interoperate on the wire are one op.
            Op { $($(#[$meta])* $variant = $number, $text;)* }
        }

        impl Op {
            /// Which ranks this op must wait for.
            ///
            /// A leaf of a rooted collective may complete early. This was measured on Gloo and with
            /// NCCL's protocols: the send of a small message completes before its receiver arrives.
            #[must_use]
            pub const fn direction(self) -> Direction {
                match self {
                    $(Self::$variant => Direction::$direction,)*
                    Self::Unspecified => Direction::Unknown,
                }
            }

            const fn facts(self) -> u8 {
                match self {
                    $(Self::$variant => 0 $(| Fact::$fact as u8)*,)*
                    Self::Unspecified => 0,
                }
            }
        }
    };
}

/// Facts about operations, as bits.
enum Fact {
    /// Takes a reduction operator.
    Reduces = 1,
    /// Takes several tensors, of which only the first is recorded.
    Coalesced = 2,
    /// Creates a process group.
    CreatesGroup = 4,
}

// The other tables of operations are generated from this one (`proto/tests/codegen.rs`).
ops! {
    /// Every rank contributes and every rank receives the reduction.
    AllReduce = 1, "all_reduce", Symmetric Reduces;
    /// Also `all_gather_into_tensor`.
    AllGather = 2, "all_gather", Symmetric;
    /// Also `reduce_scatter_tensor`.
    ReduceScatter = 3, "reduce_scatter", Symmetric Reduces;
    /// Also `all_to_all_single`.
    AllToAll = 4, "all_to_all", Symmetric;
    /// No rank leaves before all ranks have entered.
    Barrier = 5, "barrier", Symmetric;
    /// From the root to all.
    Broadcast = 6, "broadcast", FromRoot;
    /// From all to the root, reduced.
    Reduce = 7, "reduce", ToRoot Reduces;
    /// From all to the root.
    Gather = 8, "gather", ToRoot;
    /// From the root, one piece to each rank.
    Scatter = 9, "scatter", FromRoot;
    /// Point to point, to `peer`.
    Send = 10, "send", PointToPoint;
    /// Point to point, from `peer`.
    Recv = 11, "recv", PointToPoint;
    /// Several tensors reduced as one call.
    AllReduceCoalesced = 12, "all_reduce_coalesced", Symmetric Reduces Coalesced;
    /// Several tensors gathered as one call.
    AllGatherCoalesced = 13, "all_gather_coalesced", Symmetric Coalesced;
    /// Several tensors reduced and scattered as one call.
    ReduceScatterCoalesced = 14, "reduce_scatter_coalesced", Symmetric Reduces Coalesced;
    /// Joins the world. Like the following ones, except `MonitoredBarrier`, not a collective of a group, without a
    /// sequence number.
    InitProcessGroup = 32, "init_process_group", Unknown;
    /// Creates a process group.
    NewGroup = 33, "new_group", Unknown CreatesGroup;
    /// Leaves a group, or all groups.
    DestroyProcessGroup = 34, "destroy_process_group", Unknown;
    /// Gloo's barrier that reports the missing ranks. It uses numbers of its group's messages, as a collective does.
    MonitoredBarrier = 35, "monitored_barrier", Symmetric;
    /// Creates a group out of another one.
    SplitGroup = 36, "split_group", Unknown CreatesGroup;
    /// A call for which this version has no name.
    Other = 63, "other", Unknown;
}

/// Which ranks a call must wait for with every backend, so that a proof may rely on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No rank can complete before every rank has started.
    Symmetric,
    /// Every rank needs the root; the root may complete early.
    FromRoot,
    /// The root needs every rank; the other ranks may complete early.
    ToRoot,
    /// The receiver needs the sender; the sender may complete early.
    PointToPoint,
    /// Unknown.
    Unknown,
}

impl Op {
    /// Whether the op is a send or a receive.
    #[must_use]
    pub const fn is_point_to_point(self) -> bool {
        matches!(self.direction(), Direction::PointToPoint)
    }

    /// Whether the op creates a process group.
    #[must_use]
    pub const fn creates_group(self) -> bool {
        self.facts() & Fact::CreatesGroup as u8 != 0
    }

    /// Whether other calls may be made inside a call of this op. Such a call has no sequence number.
    #[must_use]
    pub const fn encloses_calls(self) -> bool {
        self as u8 >= Self::InitProcessGroup as u8 && !self.is_collective()
    }

    /// Whether the op is a collective of a group, which has a sequence number there.
    #[must_use]
    pub const fn is_collective(self) -> bool {
        matches!(self.direction(), Direction::Symmetric | Direction::FromRoot | Direction::ToRoot)
    }

    /// Whether the op carries no data, and blocks the thread until every rank has entered.
    #[must_use]
    pub const fn is_barrier(self) -> bool {
        matches!(self, Self::Barrier | Self::MonitoredBarrier)
    }

    /// Whether the op has a root rank.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(self.direction(), Direction::FromRoot | Direction::ToRoot)
    }

    /// Whether the op takes a reduction operator.
    #[must_use]
    pub const fn reduces(self) -> bool {
        self.facts() & Fact::Reduces as u8 != 0
    }

    /// Whether the op takes several tensors, of which only the first is recorded.
    #[must_use]
    pub const fn is_coalesced(self) -> bool {
        self.facts() & Fact::Coalesced as u8 != 0
    }
}

words! {
    /// Element type of a tensor.
    DType {
        /// 32-bit float.
        Float32 = 1, "float32";
        /// 64-bit float.
        Float64 = 2, "float64";
        /// 16-bit IEEE float.
        Float16 = 3, "float16";
        /// 16-bit float with 8 exponent bits.
        BFloat16 = 4, "bfloat16";
        /// 8-bit integer.
        Int8 = 5, "int8";
        /// 16-bit integer.
        Int16 = 6, "int16";
        /// 32-bit integer.
        Int32 = 7, "int32";
        /// 64-bit integer.
        Int64 = 8, "int64";
        /// Unsigned 8-bit integer.
        UInt8 = 9, "uint8";
        /// Unsigned 16-bit integer.
        UInt16 = 10, "uint16";
        /// Unsigned 32-bit integer.
        UInt32 = 11, "uint32";
        /// Unsigned 64-bit integer.
        UInt64 = 12, "uint64";
        /// Boolean, one byte each.
        Bool = 13, "bool";
        /// 8-bit float with 4 exponent bits.
        Float8E4M3 = 14, "float8_e4m3fn";
        /// 8-bit float with 5 exponent bits.
        Float8E5M2 = 15, "float8_e5m2";
        /// Complex number of two 32-bit floats.
        Complex64 = 16, "complex64";
        /// Complex number of two 64-bit floats.
        Complex128 = 17, "complex128";
        /// A type for which this version has no name.
        Other = 63, "other";
    }
}

impl DType {
    /// Bytes per element; `None` if unknown.
    #[must_use]
    pub const fn size(self) -> Option<u64> {
        match self {
            Self::Int8 | Self::UInt8 | Self::Bool | Self::Float8E4M3 | Self::Float8E5M2 => Some(1),
            Self::Float16 | Self::BFloat16 | Self::Int16 | Self::UInt16 => Some(2),
            Self::Float32 | Self::Int32 | Self::UInt32 => Some(4),
            Self::Float64 | Self::Int64 | Self::UInt64 | Self::Complex64 => Some(8),
            Self::Complex128 => Some(16),
            Self::Unspecified | Self::Other => None,
        }
    }
}

words! {
    /// Reduction operator.
    ReduceOp {
        /// Sum.
        Sum = 1, "sum";
        /// Arithmetic mean.
        Avg = 2, "avg";
        /// Product.
        Product = 3, "product";
        /// Minimum.
        Min = 4, "min";
        /// Maximum.
        Max = 5, "max";
        /// Bitwise and.
        Band = 6, "band";
        /// Bitwise or.
        Bor = 7, "bor";
        /// Bitwise exclusive or.
        Bxor = 8, "bxor";
        /// Sum after a multiplication by a scalar.
        PremulSum = 9, "premul_sum";
        /// An operator for which this version has no name.
        Other = 63, "other";
    }
}

words! {
    /// Kind of a record in a black box.
    RecordKind {
        /// A call is about to be made; written before the call.
        Issued = 1, "issued";
        /// The call returned to its caller.
        Returned = 2, "returned";
        /// The thread is about to wait for an earlier call.
        WaitBegin = 3, "wait-begin";
        /// The wait is over.
        WaitEnd = 4, "wait-end";
        /// The call is known to be complete.
        Completed = 5, "completed";
        /// A training step begins.
        Step = 6, "step";
        /// A named phase begins.
        PhaseBegin = 7, "phase-begin";
        /// A named phase ends.
        PhaseEnd = 8, "phase-end";
        /// A group was destroyed on this rank.
        GroupDestroyed = 9, "group-destroyed";
        /// An exception was observed.
        Exception = 10, "exception";
        /// The process is about to exit by itself.
        Exit = 11, "exit";
        /// Part of the split sizes of an `all_to_all`.
        Splits = 12, "splits";
        /// A note about the capture itself.
        Note = 13, "note";
        /// An iterator over the program's input was exhausted.
        InputEnded = 14, "input-ended";
        /// The timeout of a group's calls became known, or changed.
        GroupTimeout = 15, "group-timeout";
        /// Memory of the process as measured in the process.
        Memory = 17, "memory";
        /// A version or a setting on which ranks may have to agree: "name=value".
        Setting = 18, "setting";
        /// The call was never waited for and can no longer be.
        Unawaited = 30, "unawaited";
        /// What a call requests of the layer below: the NCCL call of a c10d call.
        LowerCall = 31, "lower_call";
        /// The thread entered a function of the layer below, or returned from it.
        Within = 32, "within";
        /// A network transfer of a call makes no progress, or makes progress again.
        Transfer = 33, "transfer";
        /// Parameters of a model whose gradients ranks average.
        Parameters = 40, "parameters";
        /// Time was spent on something other than the program's own work.
        Spent = 50, "spent";
    }
}

words! {
    /// What a process spends time on other than its own work.
    Spending {
        /// Waiting for its input: a batch of the data loader.
        Input = 1, "input";
        /// Garbage collection of the interpreter.
        Garbage = 2, "garbage";
        /// DDP's wait for its gradient buckets at the end of a backward pass.
        Buckets = 3, "buckets";
    }
}

words! {
    /// What a record of kind [`RecordKind::Parameters`] states about the parameters it lists.
    ParameterFact {
        /// They are the parameters that need a gradient, in the order in which ranks compare them.
        Layout = 1, "layout";
        /// They had no gradient at the end of a backward pass.
        WithoutGradient = 2, "without gradient";
        /// A later backward pass gave all of them their gradients.
        Complete = 3, "complete";
        /// Their gradients were marked ready twice in one backward pass.
        ReadyTwice = 4, "ready twice";
        /// The graph changed although it was declared static.
        GraphChanged = 5, "graph changed";
        /// Step after step they got gradients from a backward pass without a forward pass of DDP.
        Outside = 6, "outside";
        /// Every step searches for parameters without a gradient, and no examined step had any.
        NeverUnused = 7, "never unused";
        /// A line at which the program uses them.
        UsedAt = 8, "used at";
        /// The values of some elements of one of them, after a synchronized backward pass.
        Values = 9, "values";
        /// They required no gradient when the model was wrapped, and got one step after step.
        Thawed = 10, "thawed";
    }
}

words! {
    /// Where an exception was observed.
    ExceptionKind {
        /// It was not caught.
        Uncaught = 1, "uncaught";
        /// It left `DistributedDataParallel.forward`.
        LeftForward = 2, "left forward";
        /// It left a backward pass.
        LeftBackward = 3, "left backward";
        /// It left a call of `torch.distributed`.
        LeftCollective = 4, "left a collective";
        /// It was being handled when the next call was issued.
        InFlight = 5, "in flight";
        /// It ended a thread other than the main one.
        UncaughtInThread = 6, "uncaught in a thread";
        /// None: PyTorch ignored a call on a group that the rank does not belong to.
        IgnoredCall = 7, "ignored call";
    }
}

words! {
    /// Why the evidence is incomplete.
    NoteKind {
        /// The capture does not support this PyTorch, or not all of its collectives.
        NoHooks = 1, "no hooks";
        /// A descendant process runs PyTorch, but the capture was not switched on in it.
        CaptureLost = 2, "capture lost";
        /// There was not enough space for a black box.
        NoBlackBox = 3, "no black box";
        /// A rank of the world was never seen.
        RankNotSeen = 4, "rank not seen";
        /// A black box could not be read.
        Unreadable = 5, "unreadable";
        /// The native library could not be loaded.
        NoLibrary = 6, "no library";
        /// The process is several ranks: the calls of one of them, or of none, are captured.
        SeveralRanks = 7, "several ranks";
        /// Events of a journal were dropped to keep it within its limit.
        JournalCut = 8, "journal cut";
    }
}

words! {
    /// State of a process, as the operating system reports it.
    ProcessState {
        /// Running, or ready to run.
        Running = 1, "running";
        /// Waiting, interruptibly.
        Sleeping = 2, "sleeping";
        /// Waiting, uninterruptibly: nearly always I/O.
        DiskSleep = 3, "disk sleep";
        /// Stopped by a signal or a debugger, or frozen.
        Stopped = 4, "stopped";
        /// Ended and not yet reaped.
        Zombie = 5, "zombie";
        /// Ended.
        Dead = 6, "dead";
    }
}

words! {
    /// Subject of a test in the source of a program.
    GuardSubject {
        /// The rank itself.
        Rank = 1, "rank";
        /// The content of the batch, or what was computed from it.
        Data = 2, "data";
        /// Whether numbers are finite.
        Finite = 3, "finite";
        /// Other state of the rank: files, settings, random numbers.
        State = 4, "state";
        /// Something else.
        Other = 5, "other";
        /// Whether an input has ended: a queue or an iterator, whose items the loop takes.
        Input = 6, "input";
        /// The clock of the rank.
        Clock = 7, "clock";
    }
}

words! {
    /// How a line depends on a test.
    GuardForm {
        /// The line is reached only if the test holds.
        Holds = 1, "holds";
        /// The line is reached only if the test does not hold.
        Fails = 2, "fails";
        /// If the test holds, the iteration ends before the line: `continue`.
        Skips = 3, "skips";
        /// If the test holds, the loop ends before the line: `break`. In older recordings also `return`.
        Leaves = 4, "leaves";
        /// If the test holds, the loop around the line ends after the line.
        Ends = 5, "ends";
        /// The line handles an exception.
        Handles = 6, "handles";
        /// An exception raised at the line is caught, and the program continues.
        Catches = 7, "catches";
        /// The line is reached in any case, and the test decides on a value that it uses.
        Chooses = 8, "chooses";
        /// The line is in a loop over this, whose order and content may differ between ranks.
        Iterates = 9, "iterates";
        /// The line is in a function whose results are cached by this decorator.
        Caches = 10, "caches";
        /// The test decides on a value that determines how often a loop around the line runs.
        Bounds = 11, "bounds";
        /// If the test holds, the function ends before the line: `return`.
        Returns = 12, "returns";
        /// The line is in a loop over this, whose length decides how often the line is reached.
        Repeats = 13, "repeats";
        /// The line, or the header of a loop around it, uses the variable of this assignment.
        Computes = 14, "computes";
        /// The line is reached in the order in which results of this are complete: the timing of each rank decides.
        Completes = 15, "completes";
        /// The line is in a `with` statement over this, or is its header.
        Keeps = 16, "keeps";
        /// The line uses this expression with the rank as the root of a collective.
        Roots = 17, "roots";
    }
}

words! {
    /// What a thread waits for.
    BlockKind {
        /// A file or a directory.
        File = 1, "file";
        /// The other end of a pipe.
        Pipe = 2, "pipe";
        /// The other end of a socket.
        Socket = 3, "socket";
        /// The exit of a child process.
        Child = 4, "child";
        /// A key of a store of c10d.
        StoreKey = 5, "store-key";
        /// A file that another process has locked.
        FileLock = 6, "file-lock";
        /// Another thread of the process.
        Thread = 7, "thread";
        /// The GIL.
        Gil = 8, "gil";
        /// A device.
        Device = 9, "device";
        /// The end of a sleep.
        Sleep = 10, "sleep";
    }
}

words! {
    /// What slows the clocks of a GPU.
    GpuSlowdown {
        /// Nothing, or only that it is idle.
        None = 1, "none";
        /// Its clocks were set lower.
        Setting = 2, "setting";
        /// It would need more power than its limit.
        PowerLimit = 3, "power-limit";
        /// Its hardware, without a further reason.
        Hardware = 4, "hardware";
        /// The power supply asked for it.
        PowerBrake = 5, "power-brake";
        /// Its temperature.
        Heat = 6, "heat";
    }
}

words! {
    /// Kind of a port that connects ranks.
    PortKind {
        /// InfiniBand.
        Infiniband = 1, "InfiniBand";
        /// RDMA over Ethernet.
        Roce = 2, "RoCE";
        /// Ethernet.
        Ethernet = 3, "Ethernet";
        /// All NVLinks of a GPU.
        Nvlink = 4, "NVLink";
    }
}

#[cfg(test)]
#[path = "vocabulary_tests.rs"]
mod tests;
