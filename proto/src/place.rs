//! A line of the user's program in the JSON report, and the frames of installed packages between it
//! and the call: the fields `where` and `via`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::report::Where;

/// Maximum number of frames in `via`.
const MAX_VIA: usize = 4;

impl Where {
    /// The frames of `via` that are reported, at most four, outermost first: the outermost one, and
    /// the innermost ones that name a feature of the library.
    #[must_use]
    pub fn features(&self) -> Vec<&Self> {
        let Some((outermost, inner)) = self.via.split_first() else {
            return Vec::new();
        };
        let mut kept: Vec<&Self> =
            inner.iter().rev().filter(|frame| frame.is_feature()).take(MAX_VIA - 1).collect();
        // Without a feature, the frame that makes the call is all there is to name.
        if kept.is_empty() {
            kept.extend(inner.last());
        }
        kept.push(outermost);
        kept.reverse();
        kept
    }

    /// Whether the function has a public name. Decorators and callbacks are local functions.
    fn is_feature(&self) -> bool {
        let mut parts = self.function.split('.');
        parts.all(|part| !part.starts_with(['_', '<']))
    }

    /// Whether two places are one line of the user's program, whatever packages do below it.
    #[must_use]
    pub fn is_same_line(&self, other: &Self) -> bool {
        (&self.file, self.line) == (&other.file, other.line)
    }

    /// The first frame of an installed package at which the ways from this line and from `other`
    /// part, if both are the same line of the user's program.
    #[must_use]
    pub fn parting(&self, other: &Self) -> Option<&Self> {
        let is_same = self.is_same_line(other);
        let mut pairs = self.via.iter().enumerate();
        pairs
            .find(|&(at, frame)| is_same && other.via.get(at) != Some(frame))
            .map(|(_, frame)| frame)
    }
}

#[derive(Serialize)]
struct Written<'a> {
    r#where: Option<&'a Where>,
    via: Vec<&'a Where>,
}

#[derive(Deserialize)]
struct Read {
    r#where: Option<Where>,
    #[serde(default)]
    via: Vec<Where>,
}

pub(crate) fn serialize<S: Serializer>(
    place: &Option<Where>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let r#where = place.as_ref();
    let via = r#where.map(Where::features).unwrap_or_default();
    Written { r#where, via }.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Where>, D::Error> {
    let Read { r#where, via } = Read::deserialize(deserializer)?;
    Ok(r#where.map(|place| Where { via, ..place }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, line: u32) -> Where {
        Where {
            file: "/venv/site-packages/trainer/loop.py".into(),
            line,
            function: function.into(),
            ..Where::default()
        }
    }

    fn place(via: &[(&str, u32)]) -> Where {
        Where {
            file: "train.py".into(),
            line: 40,
            function: "<module>".into(),
            via: via.iter().map(|(name, line)| frame(name, *line)).collect(),
            ..Where::default()
        }
    }

    fn names(place: &Where) -> Vec<&str> {
        let features = place.features().into_iter();
        features.map(|frame| &*frame.function).collect()
    }

    #[test]
    fn features_are_the_outermost_frame_and_public_functions() {
        let through = |names: &[&'static str]| -> Vec<(&str, u32)> {
            names.iter().map(|&name| (name, 1)).collect()
        };
        let long = place(&through(&[
            "Trainer.fit",
            "Trainer._run",
            "Loop.run",
            "Loop.advance",
            "wrap.<locals>.call",
            "Trainer.save_checkpoint",
            "Strategy.barrier",
            "_sync",
        ]));
        let features =
            ["Trainer.fit", "Loop.advance", "Trainer.save_checkpoint", "Strategy.barrier"];
        assert_eq!(names(&long), features);
        assert_eq!(
            names(&place(&through(&["gather", "_wrapped", "_gather"]))),
            ["gather", "_gather"]
        );
        assert_eq!(names(&place(&through(&["_gather"]))), ["_gather"]);
        assert!(names(&place(&[])).is_empty());
    }

    #[test]
    fn ways_from_one_line_part_at_the_first_frame_that_differs() {
        let saves = place(&[("Trainer.fit", 9), ("Trainer.save", 20)]);
        let evaluates = place(&[("Trainer.fit", 9), ("Trainer.evaluate", 30)]);
        assert_eq!(saves.parting(&evaluates), Some(&saves.via[1]));
        assert_eq!(saves.parting(&saves), None);
        let elsewhere = Where { line: 41, ..evaluates };
        assert_eq!(saves.parting(&elsewhere), None);
    }
}
