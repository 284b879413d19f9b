//! Gives the library NCCL's soname, and generates the list of forwarded functions.

use std::path::Path;
use std::{env, fs, io};

/// Table of all functions of NCCL.
const TABLE: &str = "../functions.txt";

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // A program may unload NCCL while threads of this library run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={TABLE}");
    let table = fs::read_to_string(TABLE)?;
    let mut names = Vec::new();
    for line in table.lines().filter(|it| !it.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, _, what] = words[..] else { continue };
        // Hooked functions are exported by the hooks.
        if what != "hooked" {
            names.push(name.to_owned());
        }
        // Internal functions have no `pnccl` alias.
        if what != "internal" {
            names.push(format!("p{name}"));
        }
    }
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let list = format!("forward! {{\n    {}\n}}\n", names.join("\n    "));
    fs::write(Path::new(&out).join("forward.rs"), list)
}
