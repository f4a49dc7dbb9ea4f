//! libxdp: the loops in `c/libxdp.c`.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
};

use anyhow::{Context, Result, ensure};

use super::{Peer, Place};
use crate::{area::Area, sum::Sum};

/// As C programs are written: a loop over the packets.
pub const PLAIN: u8 = 0;
/// With the books that xdpsock keeps.
pub const BOOKS: u8 = 1;
/// With slices copied out of the ring and into it.
pub const SLICES: u8 = 2;

#[repr(C)]
struct Options {
    interface: *const c_char,
    queue: u32,
    frames: u32,
    ring: u32,
    rx: c_int,
    tx: c_int,
}

type Handle = c_void;

unsafe extern "C" {
    fn peer_open(out: *mut *mut Handle, area: *mut c_void, options: *const Options) -> c_int;
    fn peer_close(peer: *mut Handle);
    fn peer_fd(peer: *const Handle) -> c_int;
    fn peer_receive(peer: *mut Handle, batch: u32, sum: *mut Sum) -> u32;
    fn peer_receive_books(peer: *mut Handle, batch: u32, sum: *mut Sum) -> u32;
    fn peer_receive_slices(peer: *mut Handle, batch: u32, sum: *mut Sum) -> u32;
    fn peer_transmit(peer: *mut Handle, batch: u32, length: u32, sum: *mut Sum) -> u32;
    fn peer_transmit_books(peer: *mut Handle, batch: u32, length: u32, sum: *mut Sum) -> u32;
    fn peer_transmit_slices(peer: *mut Handle, batch: u32, length: u32, sum: *mut Sum) -> u32;
    fn peer_forward(peer: *mut Handle, batch: u32, sum: *mut Sum) -> u32;
    fn peer_forward_books(peer: *mut Handle, batch: u32, sum: *mut Sum) -> u32;
    fn peer_forward_slices(peer: *mut Handle, batch: u32, sum: *mut Sum) -> u32;
}

/// A socket of libxdp, used in one of the ways above.
pub struct LibXdp<const WAY: u8> {
    handle: NonNull<Handle>,
    _area: Area,
}

impl<const WAY: u8> LibXdp<WAY> {
    pub fn open(place: &Place) -> Result<Self> {
        let area = Area::new(place.frames)?;
        let interface = CString::new(place.interface.as_str())?;
        let options = Options {
            interface: interface.as_ptr(),
            queue: place.queue,
            frames: place.frames,
            ring: place.ring,
            rx: place.receives.into(),
            tx: place.sends.into(),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the area has as many chunks as the options say and outlives the socket; strings and
        // options outlive the call.
        let result =
            unsafe { peer_open(&raw mut handle, area.start().as_ptr().cast(), &raw const options) };
        ensure!(result == 0, io::Error::from_raw_os_error(-result));
        Ok(Self { handle: NonNull::new(handle).context("no socket")?, _area: area })
    }

    fn handle(&mut self) -> *mut Handle {
        self.handle.as_ptr()
    }
}

impl<const WAY: u8> AsFd for LibXdp<WAY> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the socket, which we own.
        unsafe { BorrowedFd::borrow_raw(peer_fd(self.handle.as_ptr())) }
    }
}

impl<const WAY: u8> Peer for LibXdp<WAY> {
    #[inline]
    fn receive(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        // SAFETY: our own socket; the sum outlives the call. The same below.
        Ok(unsafe {
            match WAY {
                BOOKS => peer_receive_books(self.handle(), batch, sum),
                SLICES => peer_receive_slices(self.handle(), batch, sum),
                _ => peer_receive(self.handle(), batch, sum),
            }
        })
    }

    #[inline]
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32> {
        // SAFETY: as above.
        Ok(unsafe {
            match WAY {
                BOOKS => peer_transmit_books(self.handle(), batch, length, sum),
                SLICES => peer_transmit_slices(self.handle(), batch, length, sum),
                _ => peer_transmit(self.handle(), batch, length, sum),
            }
        })
    }

    #[inline]
    fn forward(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        // SAFETY: as above.
        Ok(unsafe {
            match WAY {
                BOOKS => peer_forward_books(self.handle(), batch, sum),
                SLICES => peer_forward_slices(self.handle(), batch, sum),
                _ => peer_forward(self.handle(), batch, sum),
            }
        })
    }
}

impl<const WAY: u8> Drop for LibXdp<WAY> {
    fn drop(&mut self) {
        // SAFETY: made by `peer_open`, and not used any more.
        unsafe { peer_close(self.handle()) };
    }
}

/// Called by the C loops when the kernel sleeps.
#[unsafe(no_mangle)]
extern "C" fn peer_wake_tx(fd: c_int) {
    // SAFETY: the descriptor is that of the loop's socket, which is open.
    crate::wake::send(unsafe { BorrowedFd::borrow_raw(fd) });
}

/// As above, for the Fill ring.
#[unsafe(no_mangle)]
extern "C" fn peer_wake_rx(fd: c_int) {
    // SAFETY: as above.
    crate::wake::receive(unsafe { BorrowedFd::borrow_raw(fd) });
}
