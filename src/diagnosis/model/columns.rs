//! Columns of numbers in as few bits as their range takes.

/// Writes numbers and columns of values.
#[derive(Default)]
pub(in crate::model) struct Writer(Vec<u8>);

impl Writer {
    /// Adds a number in seven bits a byte, the lowest first.
    pub(in crate::model) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds a number that is usually close to another one.
    pub(in crate::model) fn difference(&mut self, number: u64, from: u64) {
        let difference = number.wrapping_sub(from).cast_signed();
        self.number(((difference << 1) ^ (difference >> 63)).cast_unsigned());
    }

    /// Adds values as differences from the lowest one, which is usually close to `base`.
    pub(in crate::model) fn column(
        &mut self,
        base: u64,
        values: impl Iterator<Item = Option<u64>> + Clone,
    ) {
        let lowest = values.clone().flatten().min().unwrap_or(base);
        let missing = u128::from(values.clone().any(|it| it.is_none()));
        let codes = values.map(|it| it.map_or(0, |it| u128::from(it - lowest) + missing));
        let bits = 128 - codes.clone().max().unwrap_or_default().leading_zeros();
        self.0.push(bits as u8 | if missing == 1 { 0x80 } else { 0 });
        self.difference(lowest, base);
        let (mut pending, mut held) = (0_u128, 0);
        for code in codes {
            pending |= code << held;
            held += bits;
            while held >= 8 {
                self.0.push(pending as u8);
                pending >>= 8;
                held -= 8;
            }
        }
        if held > 0 {
            self.0.push(pending as u8);
        }
    }

    /// The bytes, including those that a column may read beyond its end.
    pub(in crate::model) fn finish(mut self) -> Box<[u8]> {
        self.0.extend([0; size_of::<u128>()]);
        self.0.into()
    }
}

/// Reads what a [`Writer`] wrote.
pub(in crate::model) struct Reader<'a>(&'a [u8]);

/// Values of a column.
pub(in crate::model) struct Column<'a> {
    bytes: &'a [u8],
    /// Number of the next value.
    at: usize,
    len: usize,
    bits: u32,
    /// The lowest value.
    pub(in crate::model) lowest: u64,
    /// 1 if values are missing, which have the code 0.
    missing: u64,
}

impl<'a> Reader<'a> {
    pub(in crate::model) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(in crate::model) fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }

    pub(in crate::model) fn difference(&mut self, from: u64) -> u64 {
        let number = self.number();
        from.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg())
    }

    pub(in crate::model) fn column(&mut self, base: u64, len: usize) -> Column<'a> {
        let header = self.byte();
        let (bits, missing) = (u32::from(header & 0x7f), u64::from(header >> 7));
        let lowest = self.difference(base);
        let bytes = self.0;
        self.0 = &bytes[(bits as usize * len).div_ceil(8)..];
        Column { bytes, at: 0, len, bits, lowest, missing }
    }
}

impl Iterator for Column<'_> {
    type Item = Option<u64>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.len {
            return None;
        }
        let bit = self.at * self.bits as usize;
        self.at += 1;
        let bytes = &self.bytes[bit / 8..];
        let difference = if self.bits <= u64::BITS - 8 {
            let code = u64::from_le_bytes(*bytes.first_chunk()?) >> (bit % 8);
            (code & ((1 << self.bits) - 1)).checked_sub(self.missing)
        } else {
            let shifted = u128::from_le_bytes(*bytes.first_chunk()?) >> (bit % 8);
            let code = (shifted & ((1 << self.bits) - 1)).checked_sub(self.missing.into());
            code.map(|it| it as u64)
        };
        Some(difference.map(|it| self.lowest + it))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len - self.at, Some(self.len - self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_as_written() {
        let columns = [
            vec![Some(7), Some(7)],
            vec![None, None, None],
            vec![Some(u64::MAX), None, Some(0), Some(1 << 40)],
            vec![Some(1_000), Some(1_003), Some(1_001)],
            vec![],
        ];
        let mut writer = Writer::default();
        for (number, column) in (0..).zip(&columns) {
            writer.number(number << 33);
            writer.column(1_000, column.iter().copied());
        }
        writer.difference(5, u64::MAX);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        for (number, column) in (0..).zip(&columns) {
            assert_eq!(reader.number(), number << 33);
            assert!(reader.column(1_000, column.len()).eq(column.iter().copied()));
        }
        assert_eq!(reader.difference(u64::MAX), 5);
    }
}
