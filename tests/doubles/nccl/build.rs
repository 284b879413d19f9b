//! Sets the soname under which programs load the library.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo::rerun-if-changed=build.rs");
}
