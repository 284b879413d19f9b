//! Names of element types in the output of PyTorch.

use ddp_doctor_proto::DType;

/// The element type that PyTorch's C++ code, or Python, gives this name.
pub(super) fn named(name: &str) -> DType {
    match name {
        // PyTorch names the type of a tensor that does not exist, such as the output of a rank that is not
        // the destination of a gather.
        "" | "UNKNOWN_SCALAR" | "Undefined" => DType::Unspecified,
        "Float" => DType::Float32,
        "Double" => DType::Float64,
        "Half" => DType::Float16,
        "BFloat16" => DType::BFloat16,
        "Char" => DType::Int8,
        "Short" => DType::Int16,
        "Int" => DType::Int32,
        "Long" => DType::Int64,
        "Byte" => DType::UInt8,
        "UInt16" => DType::UInt16,
        "UInt32" => DType::UInt32,
        "UInt64" => DType::UInt64,
        "Bool" => DType::Bool,
        "Float8_e4m3fn" => DType::Float8E4M3,
        "Float8_e5m2" => DType::Float8E5M2,
        "ComplexFloat" => DType::Complex64,
        "ComplexDouble" => DType::Complex128,
        _ => DType::from_name(name).unwrap_or(DType::Other),
    }
}
