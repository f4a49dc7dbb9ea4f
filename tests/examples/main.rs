//! The examples as their users run them: finished programs, in namespaces, with real packets.

mod cpumap;
mod fanout;
mod l2fwd;
mod pages;
mod pktgen;
mod running;
mod rxdrop;
mod txonly;
