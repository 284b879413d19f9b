//! The picture in `docs/performance.md`: time and memory by the number of ranks.

use std::fmt::Write as _;

use crate::Row;

const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 160.0;
const MARGIN: f64 = 50.0;

/// An SVG with one chart per measure, both axes logarithmic. Of rows with the same number of ranks,
/// the first counts.
pub(crate) fn of(rows: &[Row]) -> String {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.ranks);
    rows.dedup_by_key(|row| row.ranks);
    let charts: [(&str, fn(&Row) -> f64); 3] = [
        ("one event, µs", |row| row.event.as_secs_f64() * 1e6),
        ("longest evaluation, ms", |row| {
            row.worst.as_secs_f64() * 1e3
        }),
        ("memory per rank, KiB", |row| row.memory / 1024.0),
    ];
    let mut svg = String::new();
    let (width, height) = (3.0 * (WIDTH + MARGIN) + MARGIN, HEIGHT + 2.0 * MARGIN);
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\" fill=\"#555\">"
    );
    for (number, (title, measure)) in charts.into_iter().enumerate() {
        let left = MARGIN + number as f64 * (WIDTH + MARGIN);
        chart(&mut svg, left, title, &rows, measure);
    }
    svg.push_str("</svg>\n");
    svg
}

fn chart(svg: &mut String, left: f64, title: &str, rows: &[&Row], measure: fn(&Row) -> f64) {
    let values = rows.iter().map(|row| measure(row).max(1e-3));
    let highest = values.clone().fold(0.0, f64::max).log10().ceil();
    let lowest = values.clone().fold(f64::MAX, f64::min).log10().floor();
    let range = (highest - lowest).max(1.0);
    let (first, last) = (log2(rows.first()), log2(rows.last()));
    let x = |ranks: u32| left + (f64::from(ranks).log2() - first) / (last - first).max(1.0) * WIDTH;
    let y = |value: f64| MARGIN + HEIGHT - (value.log10() - lowest) / range * HEIGHT;
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        MARGIN - 18.0
    );
    for power in lowest as i32..=(lowest + range) as i32 {
        let value = 10_f64.powi(power);
        let at = y(value);
        let right = left + WIDTH;
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ccc\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            left - 4.0,
            at + 4.0
        );
    }
    let mut line = String::new();
    for (row, value) in rows.iter().zip(values) {
        let (x, y) = (x(row.ranks), y(value));
        let _ = write!(line, "{x:.1},{y:.1} ");
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#0a6ebd\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            MARGIN + HEIGHT + 16.0,
            row.ranks
        );
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{line}\" fill=\"none\" stroke=\"#0a6ebd\" stroke-width=\"1.5\"/>"
    );
    let below = MARGIN + HEIGHT + 32.0;
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{below}\" text-anchor=\"middle\">ranks</text>",
        left + WIDTH / 2.0
    );
}

fn log2(row: Option<&&Row>) -> f64 {
    row.map_or(0.0, |row| f64::from(row.ranks).log2())
}
