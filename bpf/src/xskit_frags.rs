//! The program for interfaces whose packets may span several buffers (MTU above one page).
#![no_std]
#![no_main]

mod counters;
mod flow;
mod packet;
mod redirect;
mod rules;
mod stack;

use aya_ebpf::{
    macros::{raw_tracepoint, xdp},
    programs::{RawTracePointContext, XdpContext},
};

#[xdp(frags)]
fn xskit(ctx: XdpContext) -> u32 {
    redirect::run(&ctx)
}

#[raw_tracepoint(tracepoint = "xdp_redirect_err")]
fn xskit_redirect_err(ctx: RawTracePointContext) -> i32 {
    counters::redirect_failed(&ctx)
}

#[raw_tracepoint(tracepoint = "xdp_cpumap_enqueue")]
fn xskit_cpumap_enqueue(ctx: RawTracePointContext) -> i32 {
    stack::enqueued(&ctx)
}

#[raw_tracepoint(tracepoint = "xdp_cpumap_kthread")]
fn xskit_cpumap_kthread(ctx: RawTracePointContext) -> i32 {
    stack::processed(&ctx)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
