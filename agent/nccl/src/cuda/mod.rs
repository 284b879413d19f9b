//! The CUDA driver that the program has loaded.
//!
//! [`driver`] calls its functions. [`completion`] detects when calls are complete on their streams,
//! and [`device_memory`] samples the used memory of the device.

pub(crate) mod completion;
pub(crate) mod device_memory;
pub(crate) mod driver;
