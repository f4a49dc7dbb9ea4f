//! The few calls of bpf(2) that aya has no form of: links that we own, pin, and may replace the program of.
#![allow(unsafe_code, reason = "calls bpf(2) and dup3(2), and adopts the descriptor of a new link")]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use aya::maps::Map;
use bytemuck::{NoUninit, Zeroable, bytes_of};

const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
/// `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;

/// The beginning of `bpf_attr` for these calls; what the kernel knows beyond it counts as 0.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct LinkCreate {
    program: i32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct LinkUpdate {
    link: i32,
    program: i32,
    flags: u32,
    old_program: u32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct MapElement {
    map: i32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `bpf_cpumap_val`; kernels before 5.9 know only its first half.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct CpuMapValue {
    queue_size: u32,
    program: i32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Object {
    path: u64,
    descriptor: u32,
    flags: u32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct GetInfo {
    descriptor: u32,
    length: u32,
    info: u64,
}

/// The beginning of `bpf_link_info`, for a link of an XDP program.
#[derive(Clone, Copy, Debug, Zeroable)]
#[repr(C)]
pub(crate) struct LinkInfo {
    link_type: u32,
    id: u32,
    /// The program that it holds, by its id.
    pub(crate) program: u32,
    /// 0 in a link's, where what follows is aligned for pointers.
    padding: u32,
    /// The interface, by its index; 0 once it is gone.
    pub(crate) interface: u32,
    rest: [u32; 11],
}

fn bpf<T: NoUninit>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    let bytes = bytes_of(attributes);
    // SAFETY: the attributes are ours and live for the call, which reads `bytes.len()` initialised
    // bytes of them and writes nothing there; what they point to is a string, a key or a value that it
    // reads, or in `link_info` room for what it writes, all of which outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, bytes.as_ptr(), bytes.len()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Attaches an XDP program to an interface for as long as the returned link is open.
///
/// Linux 5.9. `flags` are the kernel's `XDP_FLAGS_…`.
pub(crate) fn xdp_link_create(
    program: BorrowedFd<'_>,
    interface: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let attributes =
        LinkCreate { program: program.as_raw_fd(), interface, attach_type: BPF_XDP, flags };
    adopt(bpf(BPF_LINK_CREATE, &attributes)?)
}

/// Takes over a descriptor that a call has returned.
fn adopt(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened this descriptor (close-on-exec) for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives a map, program or link a name in a bpffs, which keeps it.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let path = path.as_ptr().expose_provenance() as u64;
    let attributes = Object { path, descriptor: object.as_raw_fd().unsigned_abs(), flags: 0 };
    bpf(BPF_OBJ_PIN, &attributes).map(drop)
}

/// Opens what has this name in a bpffs.
pub(crate) fn pinned(path: &CStr) -> io::Result<OwnedFd> {
    let attributes =
        Object { path: path.as_ptr().expose_provenance() as u64, descriptor: 0, flags: 0 };
    adopt(bpf(BPF_OBJ_GET, &attributes)?)
}

/// What the kernel says about a link; `None` for anything but that of an XDP program.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<Option<LinkInfo>> {
    const BPF_LINK_TYPE_XDP: u32 = 6;
    let mut info = LinkInfo::zeroed();
    let attributes = GetInfo {
        descriptor: link.as_raw_fd().unsigned_abs(),
        length: u32::try_from(size_of::<LinkInfo>()).map_err(io::Error::other)?,
        info: (&raw mut info).expose_provenance() as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes)?;
    // The same call tells about maps and programs, some types of which have that number, too: there, an
    // entry's size or a part of the code's hash is in the place of the padding.
    Ok((info.link_type == BPF_LINK_TYPE_XDP && info.padding == 0).then_some(info))
}

/// Puts another program in the place of a link's, in one step: each packet sees the one or the other.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = LinkUpdate {
        link: link.as_raw_fd(),
        program: program.as_raw_fd(),
        flags: 0,
        old_program: 0,
    };
    bpf(BPF_LINK_UPDATE, &attributes).map(drop)
}

/// Gives a CPU of a CPUMAP a queue and a kernel thread, and the thread a program, if there is one.
///
/// aya takes no other program than one that it has loaded itself.
pub(crate) fn cpumap_set(
    map: BorrowedFd<'_>,
    cpu: u32,
    queue_size: u32,
    program: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // A copy is never number 0, which stands for no program.
    let program = program.map(|program| program.try_clone_to_owned()).transpose()?;
    let value = CpuMapValue { queue_size, program: program.as_ref().map_or(0, AsRawFd::as_raw_fd) };
    let attributes = MapElement {
        map: map.as_raw_fd(),
        padding: 0,
        key: (&raw const cpu).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        flags: 0,
    };
    bpf(BPF_MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// Makes a map that aya has created for an object stand for `other`, a map of the same kind.
///
/// aya shares a map between two loads of an object only through a pin, and a bpffs may not be mounted.
/// Until a program is loaded, its instructions name their maps by descriptor number: so the
/// descriptor changes under its number, and the map that was created in vain is freed.
pub(crate) fn replace_map(map: &mut Map, other: BorrowedFd<'_>) -> io::Result<()> {
    let (Map::XskMap(data) | Map::PerCpuArray(data) | Map::CpuMap(data)) = map else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let target = data.fd().as_fd().as_raw_fd();
    // SAFETY: the descriptor is open and belongs to `map`, to which we have the only reference; it
    // stays open, as a map, and `map` closes it as before.
    match unsafe { libc::dup3(other.as_raw_fd(), target, libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A program of two instructions, `return XDP_PASS`, without frags.
#[cfg(test)]
pub(crate) fn pass_program() -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: libc::c_long = 5;
    const BPF_PROG_TYPE_XDP: u64 = 6;
    let instructions: [u64; 2] = [(2 << 32) | 0xb7, 0x95]; // r0 = 2; exit
    let licence = c"GPL";
    // prog_type and insn_cnt, insns, license, log_level and the rest.
    let attr: [u64; 6] = [
        if cfg!(target_endian = "little") {
            BPF_PROG_TYPE_XDP | (2 << 32)
        } else {
            (BPF_PROG_TYPE_XDP << 32) | 2
        },
        instructions.as_ptr().expose_provenance() as u64,
        licence.as_ptr().expose_provenance() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads `attr` and what it points to, all of which outlives the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, attr.as_ptr(), size_of_val(&attr)) };
    let fd = nix::errno::Errno::result(fd)?;
    // SAFETY: a new fd, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).expect("an fd")) })
}
