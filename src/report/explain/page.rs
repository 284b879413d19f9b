//! The pages of `docs/findings`, compiled in.
//!
//! A page is Markdown of one form: the title `# CODE name`, a one-sentence summary, paragraphs that
//! explain the finding, and the sections `Example`, `Usual causes`, `What to change` and `What
//! it is not`. The page of a code that this version does not detect has a title and a summary only.

use ddp_doctor_proto::catalogue::Code;

/// The page about one finding.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    text: &'static str,
}

macro_rules! pages {
    ($($code:literal)*) => {
        &[$(($code, include_str!(concat!("../../../docs/findings/", $code, ".md"))),)*]
    };
}

/// Code and text of every page, by code.
const PAGES: &[(&str, &str)] = pages! {
    "DD101" "DD102" "DD103" "DD104" "DD105" "DD106" "DD107" "DD108" "DD109" "DD110" "DD111" "DD112"
    "DD113" "DD114" "DD115" "DD116" "DD117" "DD201" "DD202" "DD203" "DD204" "DD205" "DD206" "DD301"
    "DD302" "DD303" "DD304" "DD305" "DD306" "DD307" "DD308" "DD401" "DD402" "DD403" "DD404" "DD405"
    "DD406" "DD407" "DD501" "DD502" "DD503" "DD504" "DD505" "DD506" "DD601" "DD602" "DD603" "DD604"
    "DD605" "DD701" "DD801" "DD802" "DD803" "DD901" "DD902" "DD903" "DD904"
};

impl Page {
    /// The page about a code; an empty one if there is none.
    #[must_use]
    pub fn new(code: &Code) -> Self {
        let page = PAGES.iter().find(|(known, _)| *known == code.code);
        Self { text: page.map_or("", |(_, text)| text) }
    }

    /// The finding in one sentence, without its full stop.
    #[must_use]
    pub fn summary(self) -> String {
        let summary = self.introduction().into_iter().next().unwrap_or_default();
        summary.trim_end_matches('.').to_owned()
    }

    /// What the finding means: paragraphs of plain text, code between backquotes.
    #[must_use]
    pub fn meaning(self) -> Vec<String> {
        self.introduction().into_iter().skip(1).collect()
    }

    /// Terminal output of a finding of this kind.
    #[must_use]
    pub fn example(self) -> &'static str {
        let fenced = self.section("Example").strip_prefix("```text\n");
        fenced.unwrap_or_default().trim_end_matches("```")
    }

    /// What usually leads to it, the likeliest first.
    #[must_use]
    pub fn causes(self) -> Vec<String> {
        items(self.section("Usual causes"))
    }

    /// What to change, or where to find out.
    #[must_use]
    pub fn fix(self) -> Vec<String> {
        items(self.section("What to change"))
    }

    /// Similar findings, known false alarms and limits of detection.
    #[must_use]
    pub fn exclusions(self) -> Vec<String> {
        items(self.section("What it is not"))
    }

    /// The paragraphs between the title and the first section.
    fn introduction(self) -> Vec<String> {
        let sections = self.text.find("\n## ").unwrap_or(self.text.len());
        let mut paragraphs = self.text[..sections].split("\n\n").map(joined);
        paragraphs.next();
        paragraphs.filter(|text| !text.is_empty()).collect()
    }

    /// The text below a heading.
    fn section(self, title: &str) -> &'static str {
        let head = format!("\n## {title}\n");
        let Some((_, rest)) = self.text.split_once(&head) else {
            return "";
        };
        rest.split("\n## ").next().unwrap_or_default().trim()
    }
}

/// The items of a Markdown list.
fn items(list: &str) -> Vec<String> {
    let list = list.strip_prefix("- ").unwrap_or(list);
    let items = list.split("\n- ").map(joined);
    items.filter(|text| !text.is_empty()).collect()
}

/// Lines joined to one.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
