//! XDP programs of our own: a map, a small program written instruction by instruction, and a link.
#![allow(unsafe_code, reason = "nobody wraps bpf(2) for programs that are in no object file")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use xskit::{Attached, SocketMap};

/// Registers: R1 to R5 are arguments and lost in calls, R6 to R9 are kept, R0 is the result.
#[derive(Clone, Copy)]
pub(crate) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R6 = 6,
    R7,
    R8,
}
use Reg::{R0, R1, R2, R3, R6, R7, R8};

/// What a program returns.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Drop = 1,
    Pass = 2,
}

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

/// Helper functions.
const REDIRECT_MAP: i32 = 51;
const ADJUST_TAIL: i32 = 65;

/// A jump whose target is not written yet.
#[must_use = "a jump has to land"]
pub(crate) struct Jump(usize);

/// A program being written.
#[derive(Default)]
pub(crate) struct Assembler {
    code: Vec<u64>,
}

impl Assembler {
    fn push(&mut self, opcode: u8, (to, from): (Reg, Reg), offset: i16, value: i32) -> &mut Self {
        self.code.push(
            u64::from(opcode)
                | (to as u64) << 8
                | (from as u64) << 12
                | u64::from(offset.cast_unsigned()) << 16
                | u64::from(value.cast_unsigned()) << 32,
        );
        self
    }

    /// `to = value`
    pub(crate) fn set(&mut self, to: Reg, value: i32) -> &mut Self {
        self.push(0xb7, (to, R0), 0, value)
    }

    /// `to = from`
    pub(crate) fn copy(&mut self, to: Reg, from: Reg) -> &mut Self {
        self.push(0xbf, (to, from), 0, 0)
    }

    /// `to += value`
    pub(crate) fn add(&mut self, to: Reg, value: i32) -> &mut Self {
        self.push(0x07, (to, R0), 0, value)
    }

    /// `to &= value`
    pub(crate) fn and(&mut self, to: Reg, value: i32) -> &mut Self {
        self.push(0x57, (to, R0), 0, value)
    }

    /// `to = *(u8 *)(from + offset)`
    pub(crate) fn load_byte(&mut self, to: Reg, from: Reg, offset: i16) -> &mut Self {
        self.push(0x71, (to, from), offset, 0)
    }

    /// `to = *(u32 *)(from + offset)`
    fn load_word(&mut self, to: Reg, from: Reg, offset: i16) -> &mut Self {
        self.push(0x61, (to, from), offset, 0)
    }

    /// Jumps if the register is not 0.
    pub(crate) fn if_set(&mut self, register: Reg) -> Jump {
        self.push(0x55, (register, R0), 0, 0);
        Jump(self.code.len() - 1)
    }

    /// Jumps if `left > right`.
    fn if_above(&mut self, left: Reg, right: Reg) -> Jump {
        self.push(0x2d, (left, right), 0, 0);
        Jump(self.code.len() - 1)
    }

    /// Here is where a jump lands.
    pub(crate) fn land(&mut self, Jump(from): Jump) -> &mut Self {
        // Counted from the instruction after the jump.
        let distance = u16::try_from(self.code.len() - from - 1).expect("short programs");
        self.code[from] |= u64::from(distance) << 16;
        self
    }

    fn call(&mut self, helper: i32) -> &mut Self {
        self.push(0x85, (R0, R0), 0, helper)
    }

    /// Ends with this action.
    pub(crate) fn end(&mut self, action: Action) -> &mut Self {
        self.set(R0, action as i32).push(0x95, (R0, R0), 0, 0)
    }

    /// Begins: the context into R6, the packet's start into R7, and jumps if the packet has fewer bytes.
    pub(crate) fn begin(&mut self, least: i32) -> Jump {
        self.copy(R6, R1).load_word(R7, R6, DATA).load_word(R8, R6, DATA_END);
        self.copy(R0, R7).add(R0, least);
        self.if_above(R0, R8)
    }

    /// `R0 = bpf_xdp_adjust_tail(R6, by)`: 0 if it was done.
    pub(crate) fn adjust_tail(&mut self, by: i32) -> &mut Self {
        self.copy(R1, R6).set(R2, by).call(ADJUST_TAIL)
    }

    /// Ends by redirecting to the map's socket of this key, or passes the packet where there is none.
    pub(crate) fn redirect(&mut self, map: BorrowedFd<'_>, key: Reg) -> &mut Self {
        self.copy(R2, key);
        // Two instructions: 64 bits immediate, of the kind "descriptor of a map" (1, in the place of a
        // source register).
        self.push(0x18, (R1, R1), 0, map.as_raw_fd()).push(0, (R0, R0), 0, 0);
        self.set(R3, Action::Pass as i32).call(REDIRECT_MAP).push(0x95, (R0, R0), 0, 0)
    }

    /// The same, by the queue on which the packet arrived. Takes the context in R6.
    pub(crate) fn redirect_by_queue(&mut self, map: BorrowedFd<'_>) -> &mut Self {
        self.load_word(R0, R6, RX_QUEUE_INDEX).redirect(map, R0)
    }
}

/// A program of our own, attached for as long as this lives, and its XSKMAP.
pub(crate) struct Own {
    pub(crate) map: SocketMap,
    _link: OwnedFd,
}

impl Own {
    /// Loads what `write` writes, given the map of that many sockets, and attaches it. The interface's
    /// namespace has to be the thread's.
    pub(crate) fn attach(
        ifindex: u32,
        attached: Attached,
        sockets: u32,
        write: impl FnOnce(&mut Assembler, BorrowedFd<'_>),
    ) -> io::Result<Self> {
        let map = create_map(sockets)?;
        let mut assembler = Assembler::default();
        write(&mut assembler, map.as_fd());
        let program = load(&assembler.code)?;
        let link = link(&program, ifindex, attached)?;
        let map = SocketMap::from_fd(map).map_err(io::Error::other)?;
        Ok(Self { map, _link: link })
    }
}

fn create_map(sockets: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    const XSKMAP: u32 = 17;
    bpf(0, &Create { map_type: XSKMAP, key_size: 4, value_size: 4, max_entries: sockets })
}

fn load(code: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
    }
    const XDP: u32 = 6;
    let license = c"GPL";
    let mut log = vec![0_u8; 64 * 1024];
    let load = Load {
        prog_type: XDP,
        insn_cnt: u32::try_from(code.len()).map_err(io::Error::other)?,
        insns: code.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 1,
        log_size: u32::try_from(log.len()).map_err(io::Error::other)?,
        log_buf: log.as_mut_ptr().expose_provenance() as u64,
    };
    bpf(5, &load).map_err(|error| {
        let log = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default());
        io::Error::new(error.kind(), format!("{error}: {log}"))
    })
}

fn link(program: &OwnedFd, ifindex: u32, attached: Attached) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Link {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    const BPF_XDP: u32 = 37;
    let flags = match attached {
        Attached::Generic => 1 << 1,
        _ => 1 << 2,
    };
    let prog_fd = program.as_raw_fd().cast_unsigned();
    bpf(28, &Link { prog_fd, target_ifindex: ifindex, attach_type: BPF_XDP, flags })
}

/// A command that makes a descriptor; `attributes` are the start of its `union bpf_attr`.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads the attributes, which live through the call, and what they point to: the
    // callers' instructions and license, and a log buffer of theirs to write into.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attributes), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?) })
}
