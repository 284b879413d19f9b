//! The layout of the page in a browser, on the screen of a computer and of a phone.

use serde::Deserialize;

use super::pages::{
    EIGHT, LARGE, analyzed, browser, evidence, hostile, missing_call, odd_call, opened, recording,
};

/// Measures a page in a frame.
const MEASURE: &str = include_str!("layout.js");

/// Widths of the screens, in pixels.
const WIDE: u32 = 1280;
const PHONE: u32 = 390;

/// What `layout.js` measures.
#[derive(Debug, Deserialize)]
struct Layout {
    width: u32,
    /// Width of the document, with what does not fit.
    document: u32,
    /// Texts that cover each other.
    overlaps: Vec<String>,
    /// Elements that scroll sideways.
    scrolls: Vec<String>,
    /// Short places in tables that are broken into several lines.
    broken: Vec<String>,
    /// Texts of the graph that leave their node.
    outside: Vec<String>,
    /// Width of the graph of waits; 0: there is none.
    graph: u32,
    /// Size of the timeline relative to its design.
    scale: f64,
}

#[track_caller]
fn measured(page: &str, name: &str, width: u32) -> Layout {
    let browser = browser().unwrap();
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    let framed = format!(
        "<!doctype html><meta charset=utf-8><body><pre id=result></pre>\
         <iframe id=page width={width} height=844 style=border:0 srcdoc=\"{escaped}\"></iframe>\
         <script>{MEASURE}</script>"
    );
    let (dom, console) = opened(&browser, &framed, &format!("{name}-{width}"));
    assert_eq!(console, Vec::<String>::new(), "{name}");
    let (_, result) = dom.split_once("<pre id=\"result\">").unwrap();
    let result = result
        .split_once("</pre>")
        .unwrap()
        .0
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&result).unwrap_or_else(|error| panic!("{name}: {error}: {result}"))
}

#[test]
fn page_fits_the_screens_of_computers_and_phones() {
    if browser().is_none() {
        return;
    }
    let mut pages = vec![
        ("eight".to_owned(), evidence(EIGHT)),
        ("large".to_owned(), evidence(LARGE)),
        ("hostile".to_owned(), hostile()),
    ];
    for world in [8, 64, 1024] {
        pages.push((format!("mismatch-{world}"), evidence(&odd_call(world))));
        pages.push((format!("waits-{world}"), evidence(&missing_call(world))));
    }
    for name in ["groups/two_groups_in_opposite_order", "messages/p2p_ring_of_three"]
        .into_iter()
        .chain(["process/killed", "memory/leak_on_one_rank", "speed/straggler_in_input"])
    {
        let dir = recording(&format!("{name}.faulty.gz"));
        pages.push((name.replace('/', "-"), dir));
    }
    for (name, dir) in pages {
        let page = analyzed(&dir, "html");
        for width in [WIDE, PHONE] {
            let layout = measured(&page, &name, width);
            assert_eq!(layout.width, width, "{name}");
            assert!(layout.document <= width, "{name}: {layout:?}");
            assert_eq!(layout.overlaps, Vec::<String>::new(), "{name} at {width}");
            if width == PHONE {
                assert_eq!(layout.broken, Vec::<String>::new(), "{name}");
            }
            assert_eq!(layout.outside, Vec::<String>::new(), "{name} at {width}");
            // What is wider than a phone scrolls, with a shadow at the edge; the graph fits.
            let has_shadow = |it: &String| {
                ["DIV.scroll", "DIV.stack", "DIV.graph", "PRE."].contains(&it.as_str())
            };
            assert!(layout.scrolls.iter().all(has_shadow), "{name}: {:?}", layout.scrolls);
            assert!(layout.graph <= width, "{name}: {layout:?}");
            assert!((0.99..=1.01).contains(&layout.scale), "{name}: {layout:?}");
        }
    }
}

/// Ranks that block long after each other, in a cycle.
#[test]
fn timeline_opens_with_the_call_of_every_culprit() {
    let Some(browser) = browser() else { return };
    let page = analyzed(&recording("messages/p2p_ring_of_three.faulty.gz"), "html");
    let (dom, _) = opened(&browser, &page, "ring");
    let (_, timeline) = dom.split_once("aria-label=\"Calls of the ranks over time\"").unwrap();
    let timeline = timeline.split_once("</svg>").unwrap().0;
    assert_eq!(timeline.matches("<path class=\"c-stuck\"").count(), 3, "{timeline}");
}
