//! Compiles the C side: loops of ours over libxdp's own inline functions.

use std::{env, path::PathBuf, process::Command};

fn main() {
    for file in ["c/libxdp.c", "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let bpf = PathBuf::from(env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys says where"));
    let mut build = cc::Build::new();
    build.file("c/libxdp.c").opt_level(3).warnings(true).extra_warnings(true).std("gnu11");
    build.include(sources("libxdp-sys").join("xdp-tools/headers")).include(bpf);
    // As Rust does without being asked.
    build.debug(false).force_frame_pointer(false);
    build.compile("xskit_peers_c");
    let compiler = build.get_compiler();
    let version = Command::new(compiler.path()).arg("--version").output().expect("it starts");
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or("").to_owned();
    println!("cargo::rustc-env=PEERS_CC={version}, -O3");
}

/// Where cargo has put the sources of a package that we depend on: libxdp-sys does not pass on where the
/// header with the inline functions is.
fn sources(package: &str) -> PathBuf {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let cargo = env::var_os("CARGO").expect("set by cargo");
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--manifest-path"])
        .arg(manifest.join("Cargo.toml"))
        // What other platforms need has not been fetched.
        .arg("--filter-platform")
        .arg(env::var_os("TARGET").expect("set by cargo"))
        .output()
        .expect("cargo starts");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let found = packages.iter().find(|one| one["name"] == package).expect("a dependency of ours");
    let manifest = found["manifest_path"].as_str().expect("a path");
    PathBuf::from(manifest).parent().expect("in a folder").to_owned()
}
