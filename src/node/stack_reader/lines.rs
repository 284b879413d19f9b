//! Maps an instruction to its line by the line table of a code object.
//!
//! Sources: CPython, `Objects/lnotab_notes.txt` (3.9 and 3.10) and `InternalDocs/code_objects.md`,
//! `Objects/locations.md` (3.11 and later).

/// Format of a line table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// Up to 3.9: pairs of bytes, each for the beginning of a line.
    Deltas,
    /// 3.10: pairs of bytes, each for the end of a line.
    Pairs,
    /// 3.11 and later: entries of varying length.
    Locations,
}

impl LineFormat {
    /// The line of the instruction at this byte offset of the code; `None` if it has none, or the
    /// table is invalid. A negative offset is before the first instruction and yields the first
    /// line.
    #[must_use]
    pub fn line(self, table: &[u8], first_line: i32, instruction: i64) -> Option<u32> {
        if instruction < 0 {
            return u32::try_from(first_line).ok();
        }
        let line = match self {
            Self::Deltas => in_deltas(table, first_line, instruction),
            Self::Pairs => in_pairs(table, first_line, instruction),
            Self::Locations => in_locations(table, first_line, instruction),
        };
        line.and_then(|line| u32::try_from(line).ok())
    }
}

/// Pairs of a number of code bytes and the signed difference of the line behind them to the line
/// before.
fn in_deltas(table: &[u8], first_line: i32, instruction: i64) -> Option<i32> {
    let mut line = first_line;
    let mut begin = 0_i64;
    for pair in table.chunks_exact(2) {
        begin += i64::from(pair[0]);
        if begin > instruction {
            break;
        }
        line = line.checked_add(i32::from(pair[1] as i8))?;
    }
    Some(line)
}

/// Pairs of a number of code bytes and the signed difference to the previous line; −128 means no
/// line.
fn in_pairs(table: &[u8], first_line: i32, instruction: i64) -> Option<i32> {
    let mut line = first_line;
    let mut end = 0_i64;
    for pair in table.chunks_exact(2) {
        end += i64::from(pair[0]);
        let difference = pair[1] as i8;
        if difference != i8::MIN {
            line = line.checked_add(i32::from(difference))?;
        }
        if instruction < end {
            return (difference != i8::MIN).then_some(line);
        }
    }
    None
}

/// Entries of a first byte `1kkkknnn` (kind, number of code units minus one) and fields that depend
/// on the kind.
fn in_locations(table: &[u8], first_line: i32, instruction: i64) -> Option<i32> {
    let mut bytes = table.iter().copied();
    let mut line = first_line;
    let mut end = 0_i64;
    while let Some(byte) = bytes.next() {
        end += 2 * (i64::from(byte & 7) + 1);
        let kind = byte >> 3 & 15;
        let (difference, more) = match kind {
            15 => (0, 0),
            14 => (signed(&mut bytes)?, 3),
            13 => (signed(&mut bytes)?, 0),
            10..=12 => (i32::from(kind) - 10, 0),
            _ => (0, 0),
        };
        for _ in 0..more {
            number(&mut bytes)?;
        }
        // Skips columns.
        match kind {
            10..=12 => _ = (bytes.next(), bytes.next()),
            0..=9 => _ = bytes.next(),
            _ => {}
        }
        line = line.checked_add(difference)?;
        if instruction < end {
            return (kind != 15).then_some(line);
        }
    }
    None
}

/// An unsigned number in groups of six bits, least significant first.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(6) {
        let byte = bytes.next()?;
        number |= u32::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(number);
        }
    }
    None
}

fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i32> {
    let number = number(bytes)?;
    let size = (number >> 1) as i32;
    Some(if number & 1 == 1 { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line table as Python reports it: first byte, end, line.
    type Lines = &'static [(i64, i64, Option<u32>)];

    #[track_caller]
    fn check(format: LineFormat, table: &[u8], lines: Lines) {
        for &(start, end, line) in lines {
            for at in (start..end).step_by(2) {
                assert_eq!(format.line(table, 1, at), line, "at {at}");
            }
        }
        let end = lines.last().unwrap().1;
        assert_eq!(format.line(table, 1, end), None);
        assert_eq!(format.line(table, 1, -2), Some(1));
    }

    /// Of a function with a sum and a call that span several lines; `dis.findlinestarts` gives the
    /// lines. The table does not tell where the code ends.
    #[test]
    fn tables_of_3_9_are_read() {
        let table = [0, 1, 4, 1, 2, 1, 2, 255, 8, 3, 4, 1, 2, 255, 8, 3, 4, 1, 10, 1];
        let lines = [
            (-2, 1),
            (0, 2),
            (2, 2),
            (4, 3),
            (6, 4),
            (8, 3),
            (14, 3),
            (16, 6),
            (20, 7),
            (22, 6),
            (30, 9),
            (34, 10),
            (44, 11),
            (46, 11),
        ];
        for (at, line) in lines {
            assert_eq!(LineFormat::Deltas.line(&table, 1, at), Some(line), "at {at}");
        }
    }

    // All later tables are of one function, with a comprehension and a sum that span several lines.

    #[test]
    fn tables_of_3_10_are_read() {
        let table = [4, 1, 6, 1, 2, 2, 6, 254, 2, 4, 2, 1, 4, 255];
        let lines: Lines = &[
            (0, 4, Some(2)),
            (4, 10, Some(3)),
            (10, 12, Some(5)),
            (12, 18, Some(3)),
            (18, 20, Some(7)),
            (20, 22, Some(8)),
            (22, 26, Some(7)),
        ];
        check(LineFormat::Pairs, &table, lines);
        assert_eq!(LineFormat::Pairs.line(&[4, 128, 2, 1], 1, 2), None);
        assert_eq!(LineFormat::Pairs.line(&[4, 128, 2, 1], 1, 4), Some(2));
    }

    #[test]
    fn tables_of_3_11_are_read() {
        let table = [
            128, 0, 216, 8, 9, 128, 65, 240, 2, 3, 9, 6, 240, 0, 3, 9, 6, 224, 17, 18, 240, 5, 3,
            9, 6, 241, 0, 3, 9, 6, 244, 0, 3, 9, 6, 128, 65, 240, 8, 0, 13, 14, 216, 12, 13, 241,
            3, 1, 13, 14, 240, 0, 1, 5, 15,
        ];
        let lines: Lines = &[
            (0, 2, Some(1)),
            (2, 6, Some(2)),
            (6, 10, Some(3)),
            (10, 12, Some(5)),
            (12, 30, Some(3)),
            (30, 32, Some(7)),
            (32, 34, Some(8)),
            (34, 40, Some(7)),
        ];
        check(LineFormat::Locations, &table, lines);
    }

    #[test]
    fn tables_of_3_14_are_read() {
        let table = [
            128, 0, 216, 8, 9, 128, 65, 241, 6, 0, 18, 19, 243, 5, 3, 9, 6, 225, 17, 18, 136, 65,
            244, 3, 0, 9, 10, 136, 33, 142, 4, 217, 17, 18, 240, 5, 0, 5, 6, 240, 0, 3, 9, 6, 240,
            8, 0, 13, 14, 216, 12, 13, 245, 3, 1, 13, 14, 240, 0, 1, 5, 15, 249, 242, 9, 3, 9, 6,
        ];
        let lines: Lines = &[
            (0, 2, Some(1)),
            (2, 6, Some(2)),
            (6, 10, Some(5)),
            (10, 18, Some(3)),
            (18, 24, Some(5)),
            (24, 50, Some(4)),
            (50, 54, Some(5)),
            (54, 58, Some(3)),
            (58, 60, Some(7)),
            (60, 62, Some(8)),
            (62, 76, Some(7)),
            (76, 80, None),
            (80, 86, Some(3)),
        ];
        check(LineFormat::Locations, &table, lines);
    }

    #[test]
    fn invalid_tables_terminate() {
        for format in [LineFormat::Pairs, LineFormat::Locations] {
            for byte in 0..=255_u8 {
                for at in (0..2048).step_by(2) {
                    _ = format.line(&[byte; 64], i32::MAX, at);
                    _ = format.line(&[byte, 255, byte], i32::MIN, at);
                }
            }
        }
    }
}
