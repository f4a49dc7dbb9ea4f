//! Sizes and other numbers that cannot be, found before any system call.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use xskit::{ChunkSize, ErrorKind, RingSize, Socket, Step, UmemConfig, socket::BusyPoll};
use xskit_lab::{Lab, LabConfig, Need};

use crate::bench::{Expected, all_free, alone, near, refused, rings, umem};

fn configure<'a>(says: &'a [&'a str]) -> Expected<'a> {
    Expected {
        step: Step::Configure,
        kind: ErrorKind::InvalidInput,
        interface: None,
        queue: None,
        errno: None,
        says,
    }
}

#[test]
fn ring_sizes() {
    alone(|| {
        for (entries, near) in [
            (0, "1 would do"),
            (511, "512 would do"),
            (1 << 31, "16777216 would do"),
            (u32::MAX, "16777216 would do"),
        ] {
            let error = refused(|| RingSize::new(entries));
            configure(&[&format!("a ring of {entries} entries"), "a power of two", near])
                .is(&error);
        }
        for entries in [1, 512, 1 << 24] {
            assert_eq!(RingSize::new(entries).unwrap().get(), entries);
        }
    });
}

#[test]
fn chunk_sizes() {
    alone(|| {
        for bytes in [0, 1000, 3000, 8192] {
            let error = refused(|| ChunkSize::new(bytes));
            configure(&[&format!("chunks of {bytes} bytes"), "2048 or 4096", "ChunkSize::K4"])
                .is(&error);
        }
        assert_eq!(ChunkSize::new(2048).unwrap(), ChunkSize::K2);
        assert_eq!(ChunkSize::new(4096).unwrap(), ChunkSize::K4);
    });
}

#[test]
fn headroom_past_the_bound() {
    alone(|| {
        for (size, most) in [(ChunkSize::K2, 1344), (ChunkSize::K4, 3392)] {
            let umem = |headroom| UmemConfig::new(4).chunk_size(size).headroom(headroom).build();
            for headroom in [most + 1, size.bytes(), u32::MAX] {
                let error = refused(|| umem(headroom));
                configure(&[
                    &format!("a headroom of {headroom} bytes"),
                    &format!("use at most {most}"),
                ])
                .is(&error);
            }
            umem(most).unwrap();
        }
    });
}

#[test]
fn busy_polling_out_of_range() {
    fn out_of_range() {
        let umem = umem();
        for (busy_poll, says) in [
            (BusyPoll::default().budget(0), "1 to 65,535 packets"),
            (BusyPoll::default().budget(1 << 16), "1 to 65,535 packets"),
            (BusyPoll::default().time(Duration::ZERO), "1 to 2,147,483,647 microseconds"),
        ] {
            let config = rings().busy_poll(busy_poll);
            let error = refused(|| Socket::open(&umem, &near(), 0, &config));
            let says = [says];
            Expected { interface: Some("near0"), queue: Some(0), ..configure(&says) }.is(&error);
        }
        all_free(&umem);
    }

    alone(|| {
        let namespaces = LabConfig { need: Need::Namespaces, ..Default::default() };
        let Some(lab) = Lab::for_test_with(&namespaces) else { return };
        lab.enter(out_of_range);
    });
}

#[test]
fn no_chunks() {
    alone(|| {
        let error = refused(|| UmemConfig::new(0).build());
        configure(&["a UMEM of 0 chunks", "at least as many as the rings have slots"]).is(&error);
    });
}

#[test]
fn more_than_the_memory() {
    alone(|| {
        // 16 TiB.
        let error = refused(|| UmemConfig::new(u32::MAX).build());
        Expected {
            step: Step::AllocateUmem,
            kind: ErrorKind::Limit,
            says: &["17592186040320 bytes", "this machine", "use fewer chunks"],
            ..configure(&[])
        }
        .is(&error);
        UmemConfig::new(64).build().unwrap();
    });
}

#[test]
fn more_than_the_address_space() {
    alone(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
        setrlimit(Resource::RLIMIT_AS, 512 << 20, hard).unwrap();
        let error = refused(|| UmemConfig::new(1 << 18).build());
        Expected {
            step: Step::AllocateUmem,
            kind: ErrorKind::Limit,
            errno: Some(libc::ENOMEM),
            says: &["mapping 1073741824 bytes", "use fewer chunks"],
            ..configure(&[])
        }
        .is(&error);
        UmemConfig::new(64).build().unwrap();
    });
}
