//! The data path takes nothing from the heap once it runs: counted by the allocator.
#![allow(unsafe_code, reason = "an allocator that counts is one by an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use xskit::{Interest, RingSize, SocketConfig, UmemConfig, fake};

/// The system's, counting what this thread asks for while it is told to.
struct Counting;

thread_local! {
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNTED.with(|counted| counted.set(counted.get().map(|count| count + 1)));
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work`, and adds what it allocated.
fn count<T>(total: &mut u64, work: impl FnOnce() -> T) -> T {
    COUNTED.with(|counted| counted.set(Some(0)));
    let result = work();
    *total += COUNTED.with(std::cell::Cell::take).expect("set above");
    result
}

#[test]
fn the_allocator_counts() {
    let mut allocations = 0;
    let boxes = count(&mut allocations, || vec![Box::new(1), Box::new(2)]);
    assert_eq!((allocations, boxes.len()), (3, 2));
}

#[test]
fn receiving_forwarding_and_sending_allocate_nothing() -> xskit::Result<()> {
    let umem = UmemConfig::new(512).build()?;
    let size = RingSize::new(64)?;
    let config = SocketConfig::default().rx(size).tx(size).fill(size).completion(size);
    let (mut socket, kernel) = fake::socket(&umem, &config)?;
    let [mut batch, mut own, mut other] = [32, 32, 32].map(|capacity| umem.batch(capacity));
    let mut allocations = 0;
    for round in 0..200_u32 {
        // Different numbers each time, so that everything is full and empty now and then.
        for _ in 0..round % 33 {
            kernel.deliver(b"a packet to drop or forward");
        }
        let so_far = count(&mut allocations, || {
            socket.wait(Interest::READABLE, std::time::Duration::ZERO)?;
            socket.recv(&mut batch)?;
            batch.retain(|packet| packet.head_mut()[0] == b'a' && round % 3 > 0);
            other.append(&mut batch)?;
            socket.send(&mut other)?;
            own.alloc(usize::try_from(round % 7).expect("small"));
            for mut packet in own.packets_mut() {
                packet.write(b"a packet of our own").expect("it fits");
            }
            socket.send(&mut own)?;
            batch.clear();
            Ok(())
        });
        so_far?;
        kernel.transmit(64);
        // Queues of the first rounds reach the sizes that they keep.
        if round == 50 {
            allocations = 0;
        }
    }
    assert_eq!(allocations, 0);
    drop((socket, batch, own, other));
    assert!(umem.audit().is_complete());
    Ok(())
}
