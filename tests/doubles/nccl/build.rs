//! Gives the library the name by which programs ask for it.
#![expect(
    clippy::print_stdout,
    reason = "what a build script has to say goes there"
)]

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo::rerun-if-changed=build.rs");
}
