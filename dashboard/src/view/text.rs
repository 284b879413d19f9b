//! Layout of lines and tables.

use ddp_doctor_proto::words;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::theme::{Theme, Tone};

/// Drawing of lines into a buffer.
pub(super) trait Put {
    /// Draws a line. One that is wider than `width` columns ends in "…".
    fn put(&mut self, x: u16, y: u16, width: u16, line: Line<'_>);
    /// Highlights a line as selected.
    fn select(&mut self, x: u16, y: u16, width: u16, theme: Theme);
}

impl Put for Buffer {
    fn put(&mut self, x: u16, y: u16, width: u16, line: Line<'_>) {
        if y < self.area.bottom() && x < self.area.right() {
            let room = width.min(self.area.right() - x);
            self.set_line(x, y, &line, room);
            let is_cut =
                room > 0 && super::text::width(line.to_string().trim_end()) > usize::from(room);
            if is_cut && let Some(last) = self.cell_mut((x + room - 1, y)) {
                last.set_symbol("…");
            }
        }
    }

    fn select(&mut self, x: u16, y: u16, width: u16, theme: Theme) {
        let area = ratatui::layout::Rect::new(x, y, width, 1).intersection(self.area);
        self.set_style(area, theme.banner(Tone::Plain));
    }
}

/// Makes addresses unrecognizable as links to a terminal. Cells have dropped the joiners of [`words::plain`], which
/// have no column of their own.
pub(super) fn separate_addresses(buffer: &mut Buffer) {
    let width = usize::from(buffer.area.width).max(1);
    for row in buffer.content.chunks_mut(width) {
        let text: String = row.iter().map(Cell::symbol).collect();
        let mut end = 0;
        for cell in row {
            end += cell.symbol().len();
            let (before, after) = text.split_at(end);
            if words::is_acted_on(before, after) {
                let symbol = format!("{}{}", cell.symbol(), words::JOINER);
                cell.set_symbol(&symbol);
            }
        }
    }
}

/// Index of the first entry to show, so that the selected one is visible.
pub(super) fn window(selected: usize, of: usize, room: usize) -> usize {
    selected.saturating_sub(room / 2).min(of.saturating_sub(room))
}

/// Width of a text in columns.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Text behind a label, wrapped to `columns` columns in total.
pub(super) fn labeled(theme: Theme, label: &str, text: &str, columns: usize) -> Vec<Line<'static>> {
    const INDENT: usize = 8;
    let lines = words::wrapped(&words::plain(text), columns.saturating_sub(INDENT).max(8));
    let mut label = label;
    let lines = lines.into_iter().map(|text| {
        let shown = format!("{:<INDENT$}", std::mem::take(&mut label));
        Line::from(vec![Span::styled(shown, theme.style(Tone::Label)), Span::raw(text)])
    });
    lines.collect()
}

/// Formats rows of cells as lines with aligned columns; columns without any text are left out. If a
/// row does not fit into `columns` columns, the last cells move to lines of their own.
pub(super) fn aligned<const N: usize>(
    rows: &[[String; N]],
    columns: usize,
    style: impl Fn(usize, usize) -> Style,
) -> Vec<Line<'static>> {
    const GAP: usize = 2;
    let widest = |column: usize| rows.iter().map(|row| width(&row[column])).max();
    let widths: Vec<usize> = (0..N).map(|it| widest(it).unwrap_or(0)).collect();
    let filled = widths.iter().filter(|&&it| it > 0).count();
    let total: usize = widths.iter().sum::<usize>() + GAP * filled.saturating_sub(1);
    let breaks = total > columns && N > 1;
    let mut lines = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let mut spans = Vec::new();
        let on_line = if breaks { N - 1 } else { N };
        for column in (0..on_line).filter(|&it| widths[it] > 0) {
            let pad = widths[column] + GAP - width(&row[column]);
            spans.push(Span::styled(row[column].clone(), style(index, column)));
            spans.push(Span::raw(" ".repeat(pad)));
        }
        lines.push(Line::from(spans));
        if breaks && !row[N - 1].is_empty() {
            let indent = " ".repeat(widths[0] + GAP);
            lines.push(Line::from(vec![
                Span::raw(indent),
                Span::styled(row[N - 1].clone(), style(index, N - 1)),
            ]));
        }
    }
    lines
}

/// Shortens parts so that all together fit into `room` lines. Each step names a part and the
/// minimum number of lines that it keeps. A shortened part ends with "…".
pub(super) fn fit(parts: &mut [Vec<Line<'static>>], steps: &[(usize, usize)], room: usize) {
    for &(index, least) in steps {
        let total: usize = parts.iter().map(Vec::len).sum();
        let over = total.saturating_sub(room);
        let part = &mut parts[index];
        let keep = part.len().saturating_sub(over).max(least);
        if keep < part.len() {
            part.truncate(keep);
            if let Some(last) = part.last_mut() {
                last.push_span(" …");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(lines: &[Line<'_>]) -> Vec<String> {
        lines.iter().map(|it| it.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn last_cell_of_wide_rows_moves_below() {
        let row = |it: [&str; 3]| it.map(str::to_owned);
        let rows = [row(["rank 0", "", "all_reduce"]), row(["rank 12", "", "b"])];
        let style = |_, _| Style::new();
        assert_eq!(plain(&aligned(&rows, 40, style)), ["rank 0   all_reduce", "rank 12  b"]);
        assert_eq!(
            plain(&aligned(&rows, 12, style)),
            ["rank 0", "         all_reduce", "rank 12", "         b"]
        );
    }

    #[test]
    fn cut_lines_end_in_an_ellipsis() {
        let mut buffer = Buffer::empty(ratatui::layout::Rect::new(0, 0, 8, 3));
        for (y, text) in (0..).zip(["12345678", "123456789", "1234    "]) {
            buffer.put(0, y, 8, Line::raw(text));
        }
        let lines = super::super::lines_of(&buffer);
        assert_eq!(lines, ["12345678", "1234567…", "1234"]);
    }

    #[test]
    fn parts_are_shortened_in_order_and_marked() {
        let part = |lines: usize| (0..lines).map(|it| Line::raw(it.to_string())).collect();
        let mut parts = [part(5), part(5)];
        fit(&mut parts, &[(1, 3), (0, 4), (1, 1)], 6);
        let left: Vec<_> = parts.iter().map(|it| plain(it)).collect();
        assert_eq!(left, [vec!["0", "1", "2", "3 …"], vec!["0", "1 …"]]);
    }

    #[test]
    fn selected_entry_is_always_in_the_window() {
        for of in [0, 1, 5, 100] {
            for selected in 0..of {
                for room in 1..20 {
                    let first = window(selected, of, room);
                    assert!(first <= selected && selected < first + room);
                }
            }
        }
    }
}
