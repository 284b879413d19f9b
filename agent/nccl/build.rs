//! Sets linker options of the library.

fn main() {
    // NCCL unloads its profiler with the last communicator, while other threads may still run its
    // code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
