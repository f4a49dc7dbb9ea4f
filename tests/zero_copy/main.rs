//! Zero-copy, on two interfaces that hear each other and are lent by the environment variable
//! `XSKIT_TEST_NICS`: `cargo xtask vm` lends virtio_net's in a virtual machine; with hardware of yours,
//! `XSKIT_TEST_NICS=eth1,eth2 cargo xtask test zero_copy`. All their traffic stops meanwhile.

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod forward;
mod killed;
mod limits;
mod queues;
mod refusals;
mod teardown;
mod traffic;
