//! What happens to a job, as messages to a webhook.

use ddp_doctor_proto::catalogue::is_gap;
use ddp_doctor_proto::report::{
    Confidence, Effect, Finding, Role, Severity, Timestamp, Verdict, Where,
};
use ddp_doctor_proto::words::{JOINER, is_hidden, plain};
use serde::Serialize;

/// Maximum number of ranks that a message lists.
const MAX_RANKS: usize = 16;
/// Maximum length of a text in a message, in characters.
const MAX_TEXT: usize = 2000;

/// A message to a webhook.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// An initiating finding was made, or its root cause ranks or its effect changed.
    Finding {
        /// Id of the job.
        job: String,
        /// Verdict about the job.
        verdict: Verdict,
        /// The finding.
        finding: Box<Excerpt>,
    },
    /// A job that hung no longer hangs.
    HangEnded {
        /// Id of the job.
        job: String,
        /// Verdict about the job.
        verdict: Verdict,
        /// Whether the job has ended, or is no longer monitored.
        job_ended: bool,
    },
    /// The coordinator is alive.
    Heartbeat {
        /// Jobs that it diagnoses.
        running: usize,
        /// Jobs among them whose diagnosis did not answer in time.
        unresponsive: usize,
        /// Jobs among them that hang.
        hanging: usize,
    },
}

/// The part of a finding that a message contains: of bounded size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Excerpt {
    code: String,
    name: String,
    severity: Severity,
    effect: Effect,
    confidence: Confidence,
    headline: String,
    summary: String,
    /// The first [`MAX_RANKS`] root cause ranks.
    root: Vec<u32>,
    root_count: usize,
    root_confidence: Confidence,
    victim_count: usize,
    group: Option<String>,
    op: Option<String>,
    seq: Option<u64>,
    /// The line at which the first root cause rank is, or the first rank with a line.
    #[serde(rename = "where")]
    place: Option<Where>,
    next: Option<String>,
    blocked_at: Option<Timestamp>,
    detected_at: Timestamp,
}

impl From<&Finding> for Excerpt {
    fn from(finding: &Finding) -> Self {
        let is_root = |rank: u32| finding.ranks.root.contains(&rank);
        let calls = || finding.per_rank.iter().filter(|call| call.place.is_some());
        let call = calls().find(|call| is_root(call.rank)).or(calls().next());
        Self {
            code: finding.code.clone(),
            name: cut(&finding.name),
            severity: finding.severity,
            effect: finding.effect,
            confidence: finding.confidence,
            headline: cut(finding.title()),
            summary: cut(&finding.summary),
            root: finding.ranks.root.iter().copied().take(MAX_RANKS).collect(),
            root_count: finding.ranks.root.len(),
            root_confidence: finding.ranks.root_confidence,
            victim_count: finding.ranks.victims.len(),
            group: finding.group.as_ref().map(|group| cut(&group.name)),
            op: finding.op.as_deref().map(cut),
            seq: finding.seq,
            place: call.and_then(|call| call.place.clone()).map(|place| Where {
                file: cut(&place.file),
                function: cut(&place.function),
                ..place
            }),
            next: finding.next.first().map(|next| cut(next)),
            blocked_at: finding.blocked_at,
            detected_at: finding.detected_at,
        }
    }
}

/// Text of limited length without control characters and invisible ones.
fn cut(text: &str) -> String {
    let shown = text.chars().filter(|c| !is_hidden(*c));
    shown.take(MAX_TEXT).collect()
}

/// Text for a chat, which evaluates markup: Slack's characters are escaped by its rule, and joiners, which are
/// invisible, keep names from being mentions, tags, emoji or spoilers, and addresses from being links. What begins
/// emphasis or code in any of the chats, also next to a joiner, is replaced by a character that looks alike.
fn for_chat(text: &str) -> String {
    let text: Vec<char> = plain(text).chars().collect();
    let mut out = String::with_capacity(text.len());
    // Nothing is a heading, a quotation or an item of a list.
    if text.first().is_some_and(|c| !c.is_alphabetic()) {
        out.push(JOINER);
    }
    // Number of characters since a colon that can be the name of an emoji.
    let mut name_of_emoji = None;
    for (at, &c) in text.iter().enumerate() {
        let is_in_word = |at: usize| text.get(at).is_some_and(|it| it.is_alphanumeric());
        if c == ':' && name_of_emoji.is_some_and(|it| it > 0) {
            out.push(JOINER);
        }
        name_of_emoji = match c {
            ':' => Some(0),
            c if c.is_alphanumeric() || "_+-".contains(c) => name_of_emoji.map(|it| it + 1),
            _ => None,
        };
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' | '#' | '|' => out.extend([c, JOINER]),
            '(' if out.ends_with(']') => out.extend([JOINER, c]),
            '*' => out.push('∗'),
            '`' => out.push('ˋ'),
            '~' => out.push('∼'),
            // Within a word, as in most names, it begins nothing.
            '_' if at.checked_sub(1).is_none_or(|it| !is_in_word(it)) || !is_in_word(at + 1) => {
                out.push('ˍ');
            }
            c => out.push(c),
        }
    }
    out
}

impl Event {
    /// The message as one sentence for a chat, without markup.
    #[must_use]
    pub fn text(&self) -> String {
        for_chat(&self.sentence())
    }

    fn sentence(&self) -> String {
        match self {
            Self::Finding { job, finding, .. } => {
                let (code, name) = (&finding.code, &finding.name);
                format!("{job}: {code} {name}: {}", finding.headline)
            }
            Self::HangEnded { job, job_ended: true, verdict } => {
                format!("{job}: the job, which hung, has ended: verdict {verdict}")
            }
            Self::HangEnded { job, verdict, .. } => {
                format!("{job}: the job no longer hangs: verdict {verdict}")
            }
            Self::Heartbeat { running, unresponsive, hanging } => {
                format!(
                    "ddp-doctor is alive: {running} jobs, {hanging} hanging, {unresponsive} unresponsive"
                )
            }
        }
    }
}

/// Compares the findings of a job with those of before.
#[derive(Debug)]
pub struct Tracker {
    job: String,
    known: Vec<Finding>,
    hangs: bool,
}

impl Tracker {
    /// For a job without findings.
    #[must_use]
    pub fn new(job: &str) -> Self {
        Self { job: cut(job), known: Vec::new(), hangs: false }
    }

    /// The messages that follow from these findings.
    pub fn observe(&mut self, verdict: Verdict, findings: &[Finding]) -> Vec<Event> {
        let is_reported = |it: &&Finding| {
            it.role == Role::Initiating && it.severity >= Severity::Warning && !is_gap(&it.code)
        };
        let current: Vec<Finding> = findings.iter().filter(is_reported).cloned().collect();
        let mut events = Vec::new();
        for finding in &current {
            let is_same = |known: &Finding| {
                known.code == finding.code
                    && known.group == finding.group
                    && known.seq == finding.seq
                    && known.ranks.root == finding.ranks.root
                    && known.effect == finding.effect
            };
            if !self.known.iter().any(is_same) {
                events.push(Event::Finding {
                    job: self.job.clone(),
                    verdict,
                    finding: Box::new(Excerpt::from(finding)),
                });
            }
        }
        self.known = current;
        let hangs = verdict == Verdict::Hang;
        if std::mem::replace(&mut self.hangs, hangs) && !hangs {
            events.push(self.hang_ended(verdict, false));
        }
        events
    }

    /// The messages at the end of the job.
    pub fn finish(&mut self, verdict: Verdict, findings: &[Finding]) -> Vec<Event> {
        let mut events = self.observe(verdict, findings);
        if std::mem::take(&mut self.hangs) {
            events.push(self.hang_ended(verdict, true));
        }
        events
    }

    fn hang_ended(&self, verdict: Verdict, job_ended: bool) -> Event {
        Event::HangEnded { job: self.job.clone(), verdict, job_ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ddp_doctor_report::testing::{INVISIBLE, assert_inert, hostile_report, report};

    fn kinds(events: &[Event]) -> Vec<String> {
        let kind = |event: &Event| match event {
            Event::Finding { finding, .. } => finding.code.clone(),
            Event::HangEnded { job_ended, .. } => format!("hang ended, job ended: {job_ended}"),
            Event::Heartbeat { .. } => "heartbeat".into(),
        };
        events.iter().map(kind).collect()
    }

    #[test]
    fn finding_is_sent_once_and_again_when_its_root_changes() {
        let mut findings = report().findings;
        let mut tracker = Tracker::new("j\u{1b}1");
        let events = tracker.observe(Verdict::Hang, &findings);
        assert_eq!(kinds(&events), ["DD102"]);
        assert!(events[0].text().starts_with("j1: DD102 early-exit: "));
        assert!(tracker.observe(Verdict::Hang, &findings).is_empty());
        findings[0].ranks.root = vec![2];
        assert_eq!(kinds(&tracker.observe(Verdict::Hang, &findings)), ["DD102"]);
        findings[0].role = Role::Cascade;
        assert!(tracker.observe(Verdict::Hang, &findings).is_empty());
    }

    #[test]
    fn text_of_a_job_is_not_markup_in_a_chat() {
        let markup = "<!channel> <http://evil.example|here> @everyone [x](//evil.example) & &lt; \
                      **b** *i* _i_ __u__ ~s~ `c` ||hidden|| :x: :100: #tag a_b:9";
        let mut report = hostile_report();
        report.findings[0].summary.push_str(markup);
        let events = Tracker::new(&format!("{}{markup}", report.job.id))
            .finish(Verdict::Hang, &report.findings);
        assert_eq!(events.len(), 2);
        for event in events {
            let text = event.text();
            assert_inert(&text);
            assert!(
                !text.contains(['<', '>']) && !text.contains("](") && !text.contains("& "),
                "{text}"
            );
            assert!(text.contains("&lt;!channel&gt;") && text.contains("&amp;lt;"), "{text}");
            assert_eq!(text.matches('@').count(), text.matches("@\u{2060}").count(), "{text}");
            assert!(!text.contains(['*', '`', '~']) && !text.contains("||"), "{text}");
            for emphasis in [" _", "__", "_ ", ":x:", ":100:", "#t"] {
                assert!(!text.contains(emphasis), "{emphasis}: {text}");
            }
            assert!(text.contains("a_b:9"), "{text}");
            let data = serde_json::to_string(&event).unwrap();
            assert!(!data.contains(INVISIBLE), "{data}");
        }
    }

    #[test]
    fn name_of_a_job_is_not_a_block_of_markup() {
        for name in ["# job", "> job", "- job", "1. job", "#"] {
            let mut tracker = Tracker::new(name);
            let text = tracker.observe(Verdict::Hang, &report().findings)[0].text();
            assert!(text.starts_with(JOINER), "{text}");
        }
    }

    #[test]
    fn notes_and_missing_evidence_are_not_sent() {
        let mut findings = report().findings;
        findings[0].severity = Severity::Note;
        assert!(Tracker::new("j").observe(Verdict::Healthy, &findings).is_empty());
        findings[0].severity = Severity::Error;
        findings[0].code = "DD901".into();
        assert!(Tracker::new("j").observe(Verdict::Insufficient, &findings).is_empty());
    }

    #[test]
    fn end_of_a_hang_is_sent_once() {
        let findings = report().findings;
        let mut tracker = Tracker::new("j");
        tracker.observe(Verdict::Hang, &findings);
        let ended = tracker.observe(Verdict::Healthy, &[]);
        assert_eq!(kinds(&ended), ["hang ended, job ended: false"]);
        assert!(tracker.finish(Verdict::Healthy, &[]).is_empty());
        let last = tracker.finish(Verdict::Hang, &findings);
        assert_eq!(kinds(&last), ["DD102", "hang ended, job ended: true"]);
        assert!(tracker.finish(Verdict::Healthy, &[]).is_empty());
    }

    #[test]
    fn message_about_many_ranks_is_small() {
        let mut finding = report().findings.remove(0);
        finding.ranks.root = (0..131_072).collect();
        finding.ranks.victims.clone_from(&finding.ranks.root);
        finding.summary = "s".repeat(1 << 20);
        let excerpt = Excerpt::from(&finding);
        let text = serde_json::to_string(&excerpt).unwrap();
        assert!(text.len() < 8 << 10, "{} bytes", text.len());
        assert!(text.contains("\"root_count\":131072"));
    }
}
