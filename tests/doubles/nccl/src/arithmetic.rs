//! Reductions of buffers, element by element in order of ranks, so that all ranks get the same
//! bits.

use crate::{Result, Status, refuse};

/// A valid `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DataType(i32);

/// Size of an element in bytes, by `ncclDataType_t`.
const SIZES: [usize; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];

impl DataType {
    pub(crate) fn new(number: i32) -> Result<Self> {
        match usize::try_from(number) {
            Ok(at) if at < SIZES.len() => Ok(Self(number)),
            _ => {
                refuse(Status::INVALID_ARGUMENT, format!("invalid type {number} (should be 0..12)"))
            }
        }
    }

    pub(crate) fn size(self) -> usize {
        SIZES[usize::try_from(self.0).unwrap_or(0)]
    }
}

/// Reduction operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    Average,
}

/// An element of a reduction.
trait Element: Copy {
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn combine(self, other: Self, by: Reduction) -> Self;
    fn divide(self, by: usize) -> Self;
}

macro_rules! whole_numbers {
    ($($type:ident)*) => {$(
        impl Element for $type {
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap_or_default())
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            fn combine(self, other: Self, by: Reduction) -> Self {
                match by {
                    Reduction::Sum | Reduction::Average => self.wrapping_add(other),
                    Reduction::Product => self.wrapping_mul(other),
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            fn divide(self, by: usize) -> Self {
                Self::try_from(by).map_or(0, |by| self.wrapping_div(by))
            }
        }
    )*};
}

macro_rules! floating_point {
    ($($type:ident)*) => {$(
        impl Element for $type {
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap_or_default())
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            fn combine(self, other: Self, by: Reduction) -> Self {
                match by {
                    Reduction::Sum | Reduction::Average => self + other,
                    Reduction::Product => self * other,
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            fn divide(self, by: usize) -> Self {
                self / by as Self
            }
        }
    )*};
}

whole_numbers!(i8 u8 i32 u32 i64 u64);
floating_point!(f32 f64);

/// A short floating-point number with `E` bits of exponent, `M` bits of mantissa and `B` bytes. Its
/// value is exact in an `f64`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Short<const E: u32, const M: u32, const B: usize>(f64);

type Half = Short<5, 10, 2>;
type Bfloat16 = Short<8, 7, 2>;
type E4M3 = Short<4, 3, 1>;
type E5M2 = Short<5, 2, 1>;

impl<const E: u32, const M: u32, const B: usize> Short<E, M, B> {
    const BIAS: i32 = (1 << (E - 1)) - 1;
    const FULL: u32 = (1 << E) - 1;
    /// Whether the format (E4M3) has no infinities and a single NaN pattern.
    const IS_FINITE: bool = E == 4 && M == 3;

    fn decode(bits: u32) -> f64 {
        let sign = if bits >> (E + M) == 1 { -1.0 } else { 1.0 };
        let (exponent, mantissa) = ((bits >> M) & Self::FULL, bits & ((1 << M) - 1));
        let unit = |exponent: i32| f64::from(exponent - M as i32).exp2();
        if exponent == Self::FULL && !Self::IS_FINITE {
            return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if Self::IS_FINITE && exponent == Self::FULL && mantissa == (1 << M) - 1 {
            return f64::NAN;
        }
        if exponent == 0 {
            return sign * f64::from(mantissa) * unit(1 - Self::BIAS);
        }
        sign * f64::from(mantissa | 1 << M) * unit(exponent as i32 - Self::BIAS)
    }

    fn encode(value: f64) -> u32 {
        let sign = u32::from(value.is_sign_negative()) << (E + M);
        let infinity = if Self::IS_FINITE { (1 << (E + M)) - 1 } else { Self::FULL << M };
        if value.is_nan() {
            return infinity | ((1 << M) - 1);
        }
        let magnitude = value.abs();
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - Self::BIAS);
        // Rounded below in units in the last place, ties to even.
        let units = magnitude / f64::from(exponent - M as i32).exp2();
        if !units.is_finite() {
            return sign | infinity;
        }
        // Subnormal numbers have the exponent of the smallest normal ones, without the leading bit;
        // a carry from rounding increments the exponent.
        let bits = (units.round_ties_even() as i64) + ((i64::from(exponent + Self::BIAS) - 1) << M);
        if bits >= i64::from(infinity) {
            return sign | infinity;
        }
        sign | bits as u32
    }
}

impl<const E: u32, const M: u32, const B: usize> Element for Short<E, M, B> {
    fn read(bytes: &[u8]) -> Self {
        let mut wide = [0; 4];
        wide[..B].copy_from_slice(bytes);
        Self(Self::decode(u32::from_le_bytes(wide)))
    }

    fn write(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&Self::encode(self.0).to_le_bytes()[..B]);
    }

    fn combine(self, other: Self, by: Reduction) -> Self {
        Self(self.0.combine(other.0, by))
    }

    fn divide(self, by: usize) -> Self {
        Self(self.0.divide(by))
    }
}

/// Calls a function with the Rust type of the elements.
macro_rules! by_type {
    ($type:expr, $function:ident($($argument:expr),*)) => {
        match $type.0 {
            0 => $function::<i8>($($argument),*),
            1 => $function::<u8>($($argument),*),
            2 => $function::<i32>($($argument),*),
            3 => $function::<u32>($($argument),*),
            4 => $function::<i64>($($argument),*),
            5 => $function::<u64>($($argument),*),
            6 => $function::<Half>($($argument),*),
            7 => $function::<f32>($($argument),*),
            8 => $function::<f64>($($argument),*),
            9 => $function::<Bfloat16>($($argument),*),
            10 => $function::<E4M3>($($argument),*),
            _ => $function::<E5M2>($($argument),*),
        }
    };
}

/// Reduces the ranks' inputs, which have the same length.
pub(crate) fn reduce(kind: DataType, by: Reduction, given: &[Vec<u8>]) -> Vec<u8> {
    by_type!(kind, reduce_as(kind.size(), by, given))
}

/// Multiplies every element by the element in `factor`.
pub(crate) fn scale(kind: DataType, bytes: &mut [u8], factor: &[u8]) {
    by_type!(kind, scale_as(kind.size(), bytes, factor));
}

fn reduce_as<T: Element>(size: usize, by: Reduction, given: &[Vec<u8>]) -> Vec<u8> {
    let Some((first, rest)) = given.split_first() else {
        return Vec::new();
    };
    let mut reduced = first.clone();
    for (at, element) in reduced.chunks_exact_mut(size).enumerate() {
        let mut value = T::read(element);
        for other in rest {
            value = value.combine(T::read(&other[at * size..(at + 1) * size]), by);
        }
        if by == Reduction::Average {
            value = value.divide(given.len());
        }
        value.write(element);
    }
    reduced
}

fn scale_as<T: Element>(size: usize, bytes: &mut [u8], factor: &[u8]) {
    let factor = T::read(factor);
    for element in bytes.chunks_exact_mut(size) {
        let scaled = T::read(element).combine(factor, Reduction::Product);
        scaled.write(element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_floats_follow_their_formats() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2f64.powi(-24)),
            (0x0400, 2f64.powi(-14)),
            (0x7c00, f64::INFINITY),
        ] {
            assert_eq!((Half::decode(bits), Half::encode(value)), (value, bits));
        }
        for (bits, value) in [
            (0x3f80, 1.0),
            (0x4049, 3.140625),
            (0x0001, 2f64.powi(-133)),
            (0xff80, f64::NEG_INFINITY),
        ] {
            assert_eq!((Bfloat16::decode(bits), Bfloat16::encode(value)), (value, bits));
        }
        for (bits, value) in [(0x38, 1.0), (0x7e, 448.0), (0x01, 2f64.powi(-9)), (0xb8, -1.0)] {
            assert_eq!((E4M3::decode(bits), E4M3::encode(value)), (value, bits));
        }
        for (bits, value) in [(0x3c, 1.0), (0x7b, 57344.0), (0x01, 2f64.powi(-16))] {
            assert_eq!((E5M2::decode(bits), E5M2::encode(value)), (value, bits));
        }
        assert!(Half::decode(Half::encode(f64::NAN)).is_nan());
        assert!(E4M3::decode(E4M3::encode(f64::NAN)).is_nan());
        // Ties to even, and a carry into the exponent.
        assert_eq!(Half::encode(1.0 + 2f64.powi(-11)), 0x3c00);
        assert_eq!(Half::encode(1.0 + 3.0 * 2f64.powi(-11)), 0x3c02);
        assert_eq!(Half::encode(2.0 - 2f64.powi(-12)), 0x4000);
        assert_eq!(Half::encode(65536.0), 0x7c00);
    }

    #[test]
    fn every_short_float_survives_a_round_trip() {
        for bits in 0..=0xffff {
            for (decoded, encoded) in [
                (Half::decode(bits), Half::encode(Half::decode(bits))),
                (Bfloat16::decode(bits), Bfloat16::encode(Bfloat16::decode(bits))),
            ] {
                assert!(encoded == bits || decoded.is_nan(), "{bits:x} {encoded:x}");
            }
        }
    }

    #[test]
    fn integer_reductions_are_correct() {
        let given = [vec![1, 250, 3], vec![4, 10, 6]];
        let unsigned = DataType(1);
        let by = |by| reduce(unsigned, by, &given);
        assert_eq!(by(Reduction::Sum), [5, 4, 9]);
        assert_eq!(by(Reduction::Product), [4, 196, 18]);
        assert_eq!(by(Reduction::Max), [4, 250, 6]);
        assert_eq!(by(Reduction::Min), [1, 10, 3]);
        assert_eq!(by(Reduction::Average), [2, 2, 4]);
        assert_eq!(reduce(DataType(0), Reduction::Max, &given), [4, 10, 6]);
    }
}
