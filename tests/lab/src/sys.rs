//! The system calls that nix does not wrap: ethtool's ioctl, and AF_PACKET's address and options.
#![allow(unsafe_code, reason = "nix has no call for these")]

use std::{
    ffi::CString,
    io,
    mem::{size_of, size_of_val, zeroed},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    ptr,
};

/// Turns the convention "-1 and errno" into a `Result`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A socket, close-on-exec.
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A struct that ethtool's ioctl reads and fills.
///
/// # Safety
///
/// Plain integers that begin with the command, in the layout and of the size which the kernel uses for that command.
pub(crate) unsafe trait EthtoolCommand: Copy {}

/// `SIOCETHTOOL` on `interface`, in the namespace in which `socket` was made.
pub(crate) fn ethtool<C: EthtoolCommand>(
    socket: BorrowedFd<'_>,
    interface: &str,
    command: &mut C,
) -> io::Result<()> {
    let name = CString::new(interface)?;
    let name = name.as_bytes_with_nul();
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() > request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = ptr::from_mut(command).cast();
    // SAFETY: the request and the command that it points to are ours and live through the call; the
    // trait promises the command's layout.
    check(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, ptr::from_mut(&mut request))
    })?;
    Ok(())
}

/// Sets a socket option that is one `int`.
pub(crate) fn set_int(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    // SAFETY: the value lives through the call and the length is its own.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(&value).cast(),
            length_of(&value),
        )
    })?;
    Ok(())
}

/// Binds an AF_PACKET socket to one interface, for all protocols.
pub(crate) fn bind_packet(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    // SAFETY: the address lives through the call and the length is its own.
    check(unsafe {
        libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), length_of(&address))
    })?;
    Ok(())
}

fn length_of<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).expect("small structs")
}

/// Hands as many frames to the kernel as it takes without waiting; at least one, or an error.
pub(crate) fn send_frames<F: AsRef<[u8]>>(
    socket: BorrowedFd<'_>,
    frames: &[F],
) -> io::Result<usize> {
    let mut vectors: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| {
            let frame = frame.as_ref();
            libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() }
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = vectors
        .iter_mut()
        .map(|vector| {
            // SAFETY: all zeroes is a valid mmsghdr.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    let count = libc::c_uint::try_from(messages.len()).map_err(io::Error::other)?;
    // SAFETY: messages, vectors and frames are borrowed for the whole call, and only read by it but
    // for the lengths in `messages`.
    let sent = check(unsafe {
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT)
    })?;
    usize::try_from(sent).map_err(io::Error::other)
}

/// Room for the frames of one `recvmmsg`, used again and again.
#[derive(Debug)]
pub(crate) struct Slots {
    bytes: Vec<u8>,
    size: usize,
    control: Vec<Control>,
    lengths: Vec<usize>,
}

/// One control message of the kind that tells about a stripped VLAN tag, aligned as the kernel wants.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct Control([u8; 64]);

/// A VLAN tag that the kernel took out of the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub(crate) tpid: u16,
    pub(crate) tci: u16,
}

impl Slots {
    pub(crate) fn new(count: usize, size: usize) -> Self {
        Self {
            bytes: vec![0; count * size],
            size,
            control: vec![Control([0; 64]); count],
            lengths: Vec::with_capacity(count),
        }
    }

    /// The frames of the last [`recv_frames`], each with the tag that was taken out of it.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (&[u8], Option<Tag>)> {
        self.bytes
            .chunks(self.size)
            .zip(&self.control)
            .zip(&self.lengths)
            .map(|((bytes, control), length)| (&bytes[..*length], tag_of(control)))
    }
}

/// Takes what has arrived, without waiting. EAGAIN is "none".
pub(crate) fn recv_frames(socket: BorrowedFd<'_>, slots: &mut Slots) -> io::Result<usize> {
    slots.lengths.clear();
    let mut vectors: Vec<libc::iovec> = slots
        .bytes
        .chunks_mut(slots.size)
        .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = vectors
        .iter_mut()
        .zip(&mut slots.control)
        .map(|(vector, control)| {
            control.0.fill(0);
            // SAFETY: all zeroes is a valid mmsghdr.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = control.0.len();
            message
        })
        .collect();
    let count = libc::c_uint::try_from(messages.len()).map_err(io::Error::other)?;
    // SAFETY: messages, vectors, frame and control memory are ours alone for the whole call, each
    // with its own length.
    let received = check(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
        )
    });
    let received = match received {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
        other => usize::try_from(other?).map_err(io::Error::other)?,
    };
    for message in &messages[..received] {
        if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::other("a frame is longer than the receive buffer"));
        }
        slots.lengths.push(message.msg_len as usize);
    }
    Ok(received)
}

fn tag_of(control: &Control) -> Option<Tag> {
    let header = size_of::<libc::cmsghdr>();
    let field = |at: usize| -> [u8; 4] {
        control.0[at..at + 4].try_into().expect("four bytes of the control buffer")
    };
    // cmsghdr: length (8), level (4), type (4); then tpacket_auxdata: status, len, snaplen (4 each),
    // mac, net, vlan_tci, vlan_tpid (2 each).
    let level = i32::from_ne_bytes(field(8));
    let kind = i32::from_ne_bytes(field(12));
    if (level, kind) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    let status = u32::from_ne_bytes(field(header));
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let [tci_low, tci_high, tpid_low, tpid_high] = field(header + 16);
    Some(Tag {
        tpid: u16::from_ne_bytes([tpid_low, tpid_high]),
        tci: u16::from_ne_bytes([tci_low, tci_high]),
    })
}

/// Makes the command's process get SIGTERM when the thread that starts it ends, killed ones included.
///
/// The starting thread must therefore live as long as the child should.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM))?;
            Ok(())
        })
    }
}

/// Makes a small BPF map and closes it: the question whether this process may.
pub(crate) fn create_bpf_map() -> io::Result<()> {
    /// The start of `union bpf_attr` for `BPF_MAP_CREATE`.
    #[repr(C)]
    struct Create {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    const BPF_MAP_CREATE: libc::c_int = 0;
    const BPF_MAP_TYPE_HASH: u32 = 1;
    let create = Create { map_type: BPF_MAP_TYPE_HASH, key_size: 4, value_size: 4, max_entries: 1 };
    // SAFETY: the kernel reads the given number of bytes from `create`, which lives through the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, ptr::from_ref(&create), size_of_val(&create))
    };
    let fd = check(libc::c_int::try_from(fd).map_err(io::Error::other)?)?;
    // SAFETY: the kernel has just made this descriptor, so nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// The least id above this one of a kind of BPF objects, by the command that asks for it.
pub(crate) fn next_bpf_id(command: libc::c_int, id: u32) -> io::Result<u32> {
    // Where to start, and the answer.
    let mut ids = [id, 0];
    // SAFETY: the kernel reads the first number and writes the second one, in an array that lives through
    // the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, ptr::from_mut(&mut ids), size_of_val(&ids))
    };
    check(libc::c_int::try_from(result).map_err(io::Error::other)?)?;
    Ok(ids[1])
}

/// The bpf_link of this id.
pub(crate) fn bpf_link(id: u32) -> io::Result<OwnedFd> {
    const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
    bpf(BPF_LINK_GET_FD_BY_ID, &id)
}

/// Puts another program in the place of the one that the bpf_link attaches.
pub(crate) fn update_bpf_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    const BPF_LINK_UPDATE: libc::c_int = 29;
    // Link, program, flags, old program.
    bpf_call(BPF_LINK_UPDATE, &[link.as_raw_fd(), program.as_raw_fd(), 0, 0]).map(drop)
}

/// Ends the bpf_link's attachment, whoever else holds it.
pub(crate) fn detach_bpf_link(link: BorrowedFd<'_>) -> io::Result<()> {
    const BPF_LINK_DETACH: libc::c_int = 34;
    bpf_call(BPF_LINK_DETACH, &link.as_raw_fd()).map(drop)
}

/// Loads an XDP program of two instructions, which returns `action` for every packet.
pub(crate) fn load_xdp(action: u32) -> io::Result<OwnedFd> {
    load_xdp_code(&returns(action))
}

/// The same for a CPUMAP, with or without frags.
pub(crate) fn load_cpumap(action: u32, frags: bool) -> io::Result<OwnedFd> {
    const BPF_XDP_CPUMAP: u32 = 35;
    const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
    load(&returns(action), if frags { BPF_F_XDP_HAS_FRAGS } else { 0 }, BPF_XDP_CPUMAP)
}

fn returns(action: u32) -> [u64; 2] {
    /// `r0 = imm` and `exit`: opcode in the low byte, immediate in the high half.
    const MOV64_IMM: u64 = 0xb7;
    const EXIT: u64 = 0x95;
    [MOV64_IMM | u64::from(action) << 32, EXIT]
}

/// A map of that many AF_XDP sockets.
pub(crate) fn create_xskmap(entries: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_CREATE: libc::c_int = 0;
    const BPF_MAP_TYPE_XSKMAP: u32 = 17;
    // Type, sizes of key and value, entries.
    bpf(BPF_MAP_CREATE, &[BPF_MAP_TYPE_XSKMAP, 4, 4, entries])
}

/// Loads a program of these instructions.
pub(crate) fn load_xdp_code(instructions: &[u64]) -> io::Result<OwnedFd> {
    /// What a program says that takes another one's place in a bpf_link.
    const BPF_XDP: u32 = 37;
    load(instructions, 0, BPF_XDP)
}

fn load(instructions: &[u64], flags: u32, attach_type: u32) -> io::Result<OwnedFd> {
    /// The start of `union bpf_attr` for `BPF_PROG_LOAD`.
    #[repr(C)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log: [u64; 2],
        kern_version: u32,
        flags: u32,
        name: [u64; 2],
        ifindex: u32,
        attach_type: u32,
    }
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_TYPE_XDP: u32 = 6;
    let license = c"GPL";
    let load = Load {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        insns: instructions.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log: [0; 2],
        kern_version: 0,
        flags,
        name: [0; 2],
        ifindex: 0,
        attach_type,
    };
    bpf(BPF_PROG_LOAD, &load)
}

/// A call of `bpf` that makes a descriptor; what `attributes` points to lives as long as it.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let fd = bpf_call(command, attributes)?;
    // SAFETY: the kernel has just made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs an XDP program on copies of a frame, and does with them what it says.
pub(crate) fn run_live(program: BorrowedFd<'_>, frame: &[u8], count: u32) -> io::Result<()> {
    /// The start of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
    #[repr(C)]
    struct TestRun {
        prog_fd: i32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
        batch_size: u32,
        padding: u32,
    }
    const BPF_PROG_TEST_RUN: libc::c_int = 10;
    const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
    let run = TestRun {
        prog_fd: program.as_raw_fd(),
        retval: 0,
        data_size_in: u32::try_from(frame.len()).map_err(io::Error::other)?,
        data_size_out: 0,
        data_in: frame.as_ptr().expose_provenance() as u64,
        data_out: 0,
        repeat: count,
        duration: 0,
        ctx_size_in: 0,
        ctx_size_out: 0,
        ctx_in: 0,
        ctx_out: 0,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        cpu: 0,
        batch_size: 64,
        padding: 0,
    };
    bpf_call(BPF_PROG_TEST_RUN, &run).map(drop)
}

/// A call of `bpf` that only reads its attributes.
fn bpf_call<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads the attributes and what they point to, all of which lives through the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attributes), size_of_val(attributes))
    };
    check(libc::c_int::try_from(result).map_err(io::Error::other)?)
}
