//! From verdict to action: the packet's socket, or the kernel's stack.

use aya_ebpf::{bindings::xdp_action, macros::map, maps::XskMap, programs::XdpContext};

use crate::{
    counters::{self, Outcome},
    packet::Packet,
    rules, stack,
};

/// The socket of each queue. The loader sets the size.
#[map]
static SOCKETS: XskMap = XskMap::with_max_entries(64, 0);

#[inline(always)]
pub fn run(ctx: &XdpContext) -> u32 {
    // SAFETY: the kernel passes a valid context.
    let queue = unsafe { (*ctx.ctx).rx_queue_index };
    let mut outcome =
        if rules::filtering() { rules::classify(Packet::new(ctx)) } else { Outcome::Redirected };
    let mut action = xdp_action::XDP_PASS;
    if let Outcome::Redirected = outcome {
        // The flag says what to do where the map has no socket.
        match SOCKETS.redirect(queue, u64::from(xdp_action::XDP_PASS)) {
            Ok(redirect) => action = redirect,
            Err(_) => outcome = Outcome::NoSocket,
        }
    }
    if action == xdp_action::XDP_PASS {
        action = stack::pass(ctx);
    }
    // Last: with a branch behind it the compiler would count in two places.
    counters::count(queue, outcome);
    action
}
