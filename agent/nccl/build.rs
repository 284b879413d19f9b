//! How the library is linked.

fn main() {
    // NCCL unloads its profiler with the last communicator, while other threads may still be in it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
