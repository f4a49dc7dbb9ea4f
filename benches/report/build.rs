//! Records the compiler: numbers of another one are other numbers.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = env::var_os("RUSTC").expect("cargo says which compiler it uses");
    let output = Command::new(rustc).arg("--version").output().expect("the compiler starts");
    let version = String::from_utf8(output.stdout).expect("a version is text");
    println!("cargo::rustc-env=REPORT_RUSTC={}", version.trim());
    for (name, from) in [("REPORT_PROFILE", "OPT_LEVEL"), ("REPORT_TARGET", "TARGET")] {
        println!("cargo::rustc-env={name}={}", env::var(from).expect("cargo sets it"));
    }
}
