//! What this process holds, and what BPF objects the kernel has: before a fault, and after it.

use std::{collections::BTreeSet, fs};

use aya::{maps::loaded_maps, programs::loaded_programs};
use xskit_lab::{BpfKind, dontfork_mappings, socket_mappings};

use crate::support::eventually;

/// BPF objects by the kernel's numbers, which it does not use again soon.
pub(crate) type Objects = BTreeSet<(BpfKind, u32)>;

/// The objects that a process has descriptors of, and those that these refer to.
pub(crate) fn held_by(process: &str) -> Objects {
    let mut held = Objects::new();
    // A process, or a descriptor, may be gone by now.
    let Ok(infos) = fs::read_dir(format!("/proc/{process}/fdinfo")) else { return held };
    for info in infos.flatten() {
        let Ok(info) = fs::read_to_string(info.path()) else { continue };
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let kind = match name {
                "prog_id" => BpfKind::Program,
                "map_id" => BpfKind::Map,
                "link_id" => BpfKind::Link,
                _ => continue,
            };
            held.extend(value.trim().parse().map(|id| (kind, id)));
        }
    }
    held
}

/// The link by which this process has a program attached to an interface.
pub(crate) fn own_xdp_link() -> u32 {
    let infos = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let links: Vec<u32> = infos
        .filter_map(|info| fs::read_to_string(info.path()).ok())
        .filter(|info| info.lines().any(|line| line == "link_type:\txdp"))
        .filter_map(|info| {
            info.lines().find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())
        })
        .collect();
    let [link] = links[..] else { panic!("one program is attached: {links:?}") };
    link
}

/// All that the kernel has, whoever has made it.
fn in_kernel() -> Objects {
    [BpfKind::Program, BpfKind::Map, BpfKind::Link]
        .into_iter()
        .flat_map(|kind| kind.ids().unwrap().into_iter().map(move |id| (kind, id)))
        .collect()
}

/// Leaves out what has no name: programs and maps of the lab.
fn retain_named(objects: &mut Objects) {
    let programs = loaded_programs().flatten().filter(|program| program.name().is_empty());
    let maps = loaded_maps().flatten().filter(|map| map.name().is_empty());
    for object in programs
        .map(|program| (BpfKind::Program, program.id()))
        .chain(maps.map(|map| (BpfKind::Map, map.id())))
    {
        objects.remove(&object);
    }
}

/// Those that other processes hold: tests that run at the same time.
fn held_by_others() -> Objects {
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| *name != own && name.bytes().all(|byte| byte.is_ascii_digit()))
        .flat_map(|process| held_by(&process))
        .collect()
}

/// Waits until none of these objects exists: the kernel frees them a moment after their last reference.
#[track_caller]
pub(crate) fn are_gone(objects: &Objects) {
    eventually("the kernel frees what was loaded", || in_kernel().is_disjoint(objects));
}

/// What this process holds at one time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: Vec<String>,
    rings: usize,
    /// Rings and UMEMs.
    memory: usize,
}

impl Held {
    pub(crate) fn now() -> Self {
        Self {
            descriptors: descriptors(),
            rings: socket_mappings().unwrap(),
            memory: dontfork_mappings().unwrap(),
        }
    }

    /// Fails unless it holds the same again.
    #[track_caller]
    pub(crate) fn is_unchanged(&self) {
        assert_eq!(*self, Self::now(), "before and after");
    }
}

/// That, and what the kernel has.
#[derive(Debug)]
pub(crate) struct Census {
    held: Held,
    objects: Objects,
}

impl Census {
    pub(crate) fn take() -> Self {
        Self { held: Held::now(), objects: in_kernel() }
    }

    /// Fails unless this process holds what it held then, and the kernel has nothing new but what other
    /// processes hold.
    #[track_caller]
    pub(crate) fn is_unchanged(&self) {
        self.held.is_unchanged();
        eventually("the kernel frees what was loaded", || {
            let mut left = &in_kernel() - &self.objects;
            if !left.is_empty() {
                left = &left - &held_by_others();
                retain_named(&mut left);
            }
            left.is_empty()
        });
    }
}

/// What the descriptors are of, without the numbers that are new each time.
fn descriptors() -> Vec<String> {
    let mut kinds: Vec<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        // The directory itself is gone again.
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| !target.ends_with("/fd"))
        .collect();
    kinds.sort();
    kinds
}
