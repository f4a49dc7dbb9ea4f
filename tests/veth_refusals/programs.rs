//! BPF objects and maps that are not what they should be.

use std::{
    env, fs,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process,
};

use aya::maps::{Map, MapData};
use nix::{
    mount::{MsFlags, mount, umount},
    sched::{CloneFlags, unshare},
};
use xskit::{
    AttachMode, ErrorKind, ProgramOptions, Rules, Socket, SocketMap, Step, program::Loaded,
};
use xskit_lab::Lab;

use crate::bench::{
    Expected, PORT, all_free, alone, near, nothing_attached, receives, refused, rings, umem, works,
};

const OBJECT: &[u8] = include_bytes!("../../src/program/xskit.bpf.o");

fn expected<'a>(step: Step, says: &'a [&'a str]) -> Expected<'a> {
    let kind = ErrorKind::Corrupt;
    Expected { step, kind, interface: None, queue: None, errno: None, says }
}

fn load(object: &[u8]) -> xskit::Result<Loaded> {
    Loaded::from_object(object, &Rules::udp_port(PORT), &ProgramOptions::default())
}

#[test]
fn objects_that_are_truncated_or_corrupt() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let damaged = |at: usize| {
                let mut object = OBJECT.to_vec();
                object[at] ^= 0xff;
                object
            };
            let corrupt = expected(
                Step::LoadProgram,
                &["not a whole object of xskit's XDP program", "cargo xtask build-ebpf"],
            );
            for object in [
                Vec::new(),
                OBJECT[..63].to_vec(),
                OBJECT[..OBJECT.len() / 2].to_vec(),
                OBJECT[..OBJECT.len() - 1].to_vec(),
                damaged(0),
                // The place of the section headers.
                damaged(0x29),
                b"#!/bin/sh\n".to_vec(),
            ] {
                corrupt.is(&refused(|| load(&object)));
            }
            nothing_attached(&lab);

            // The whole one works, without a port too.
            let umem = umem();
            let program = load(OBJECT).unwrap().attach(&near(), AttachMode::Native).unwrap();
            let mut socket = Socket::open(&umem, &near(), 0, &rings()).unwrap();
            socket.join(program.socket_map()).unwrap();
            receives(&lab, &mut socket, &lab.raw().unwrap());
            drop((socket, program));
            works(&lab, &umem, 0);
        });
    });
}

/// A map of the embedded object, as aya has it.
fn map(name: &str) -> MapData {
    match aya::Ebpf::load(OBJECT).unwrap().take_map(name) {
        Some(
            Map::Array(data) | Map::HashMap(data) | Map::PerCpuArray(data) | Map::XskMap(data),
        ) => data,
        other => panic!("{name} is another map: {other:?}"),
    }
}

#[test]
fn a_map_of_the_wrong_type() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            for (name, kind) in
                [("PROTOCOLS", "Array"), ("VLANS", "Hash"), ("QUEUES", "PerCpuArray")]
            {
                let map = map(name);
                let fd = || -> OwnedFd { map.fd().as_fd().try_clone_to_owned().unwrap() };
                let kind = format!("a map of type {kind}");
                expected(Step::Map, &[&kind, "need a map of type XSKMAP"])
                    .is(&refused(|| SocketMap::from_fd(fd())));
            }
            let error =
                refused(|| SocketMap::from_fd(std::fs::File::open("/dev/null").unwrap().into()));
            Expected {
                errno: Some(libc::EINVAL),
                ..expected(Step::Map, &["not that of a BPF map", "XSKMAP"])
            }
            .is(&error);

            // An XSKMAP works, up to the queues that it has room for.
            let umem = umem();
            let sockets = map("SOCKETS");
            let map =
                SocketMap::from_fd(sockets.fd().as_fd().try_clone_to_owned().unwrap()).unwrap();
            let mut socket = Socket::open(&umem, &near(), 0, &rings()).unwrap();
            socket.join(&map).unwrap();
            drop(socket);
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn a_pin_that_is_no_map_of_sockets() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let pins = Pins::mount();
            let missing = refused(|| SocketMap::from_pin(pins.at("missing")));
            Expected {
                kind: ErrorKind::NotFound,
                errno: Some(libc::ENOENT),
                ..expected(
                    Step::Map,
                    &["cannot open the pinned map", "/missing)", "bpftool map show"],
                )
            }
            .is(&missing);
            map("VLANS").pin(pins.at("vlans")).unwrap();
            let error = refused(|| SocketMap::from_pin(pins.at("vlans")));
            expected(Step::Map, &["a map of type Hash", "XSKMAP", "vlans"]).is(&error);
            map("SOCKETS").pin(pins.at("sockets")).unwrap();
            let map = SocketMap::from_pin(pins.at("sockets")).unwrap();

            let umem = umem();
            let mut socket = Socket::open(&umem, &near(), 0, &rings()).unwrap();
            socket.join(&map).unwrap();
            drop((socket, map));
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn a_queue_that_the_map_has_no_room_for() {
    alone(|| {
        let config = xskit_lab::LabConfig { queues: 2, ..xskit_lab::LabConfig::default() };
        let Some(lab) = Lab::for_test_with(&config) else { return };
        lab.enter(|| {
            let umem = umem();
            let options = ProgramOptions { sockets: 1, ..ProgramOptions::default() };
            let loaded = Loaded::new(&Rules::udp_port(PORT), &options).unwrap();
            let mut socket = Socket::open(&umem, &near(), 1, &rings()).unwrap();
            let error = refused(|| socket.join(loaded.socket_map()));
            Expected {
                kind: ErrorKind::InvalidInput,
                interface: Some("near0"),
                queue: Some(1),
                ..expected(Step::Map, &["room for queues below 1", "more sockets"])
            }
            .is(&error);
            drop(socket);
            all_sorted(&umem);
            works(&lab, &umem, 1);
            let none = ProgramOptions { sockets: 0, ..ProgramOptions::default() };
            let error = refused(|| Loaded::new(&Rules::all(), &none));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            all_free(&self::umem());
        });
    });
}

fn all_sorted(umem: &xskit::Umem) {
    assert!(umem.audit().is_complete(), "{}", umem.audit());
}

/// A bpffs that this thread alone sees; gone with it.
struct Pins(PathBuf);

impl Pins {
    fn mount() -> Self {
        let directory = env::temp_dir().join(format!("xskit-pins-{}", process::id()));
        fs::create_dir(&directory).unwrap();
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("bpffs"), &directory, Some("bpf"), MsFlags::empty(), none).unwrap();
        Self(directory)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        umount(&self.0).unwrap();
        fs::remove_dir(&self.0).unwrap();
    }
}
