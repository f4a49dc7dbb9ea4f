//! Interfaces that the caller lends to tests, for what no veth can show: those of a virtual machine, or
//! hardware.

use std::{env, io};

use crate::{
    flow::Flow,
    link::Link,
    need::{Need, require, skip},
    netns::Netns,
    raw::RawPort,
    topology::bystanders,
};

/// The interfaces that an environment variable names, separated by commas, in the calling thread's
/// namespace. `None` where it names none: then the test must be skipped, and it has said so.
///
/// Even `XSKIT_TEST_REQUIRE=all` does not ask for interfaces: whoever wants these tests lends some.
///
/// # Panics
///
/// When an interface that is named is not there, or privileges are missing.
pub fn lent(variable: &str) -> Option<Vec<Link>> {
    let Ok(names) = env::var(variable) else {
        skip(&format!("no interfaces are lent by {variable}; `cargo xtask vm` has some"));
        return None;
    };
    if !require(Need::Bpf) {
        return None;
    }
    let here = Netns::current().expect("the namespace of this thread");
    let link = |name| {
        Link::named(&here, name).unwrap_or_else(|error| panic!("{variable}: {name}: {error}"))
    };
    Some(names.split(',').map(link).collect())
}

/// Two interfaces that are lent, and that hear each other.
#[derive(Debug)]
pub struct Pair {
    /// The end for the code under test.
    pub near: Link,
    /// The end for the test's own traffic.
    pub far: Link,
}

impl Pair {
    /// The first two that the variable names, as [`lent`] does.
    ///
    /// # Panics
    ///
    /// As there, and where it names only one.
    pub fn lent(variable: &str) -> Option<Self> {
        let mut links = lent(variable)?.into_iter();
        let two = links.next().zip(links.next());
        let (near, far) = two.unwrap_or_else(|| panic!("{variable} shall name two interfaces"));
        for link in [&near, &far] {
            link.up().expect("set it up");
        }
        Some(Self { near, far })
    }

    /// The far end's raw socket.
    pub fn raw(&self) -> io::Result<RawPort> {
        RawPort::open(&self.far)
    }

    /// UDP from the far end to `port` of the near one, between addresses that no stack owns, so that
    /// nobody answers.
    pub fn flow(&self, port: u16) -> Flow {
        bystanders(&self.far, &self.near, port)
    }
}
