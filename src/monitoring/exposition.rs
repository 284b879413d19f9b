//! Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that goes up and down.
    Gauge,
    /// A number that only grows, from 0 at the start of the process or of the job.
    Counter,
}

/// A metric: all samples with one name.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: Kind,
    /// One sentence, on one line and without backslashes.
    pub help: &'static str,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Page(String);

/// Label values by name.
type Labels<'a> = &'a [(&'static str, &'a str)];

impl Page {
    /// Appends a metric with its samples. A metric without samples is left out.
    pub fn metric<'a, V, L>(&mut self, metric: &Metric, samples: impl IntoIterator<Item = (L, V)>)
    where
        V: Display,
        L: AsRef<[(&'static str, &'a str)]>,
    {
        let mut has_header = false;
        for (labels, value) in samples {
            if !std::mem::replace(&mut has_header, true) {
                let kind = match metric.kind {
                    Kind::Gauge => "gauge",
                    Kind::Counter => "counter",
                };
                let (name, help) = (metric.name, metric.help);
                // Writing to a String does not fail.
                writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
            }
            self.sample(metric.name, labels.as_ref(), &value);
        }
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: &dyn Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").ok();
    }

    /// The text of the page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let metric = Metric { name: "a_total", kind: Kind::Counter, help: "A." };
        let mut page = Page::default();
        page.metric(&metric, [([("x", "a\"b\\c\nd"), ("y", "")], 1)]);
        page.metric(&metric, [([], 2.5); 0]);
        page.metric(&metric, [([], 0.5)]);
        let expected = "# HELP a_total A.\n# TYPE a_total counter\n\
                        a_total{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 1\n\
                        # HELP a_total A.\n# TYPE a_total counter\na_total 0.5\n";
        assert_eq!(page.into_text(), expected);
    }
}
