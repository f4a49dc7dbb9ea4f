//! The virtual machine: QEMU, which emulates every instruction, so that it runs wherever the tests run.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use xskit_lab::{Link, Netns, die_with_parent};

use super::kernels::Kernel;

/// How long QEMU may take to make its taps, on a busy machine.
const TAPS: Duration = Duration::from_secs(30);

const TUN: &str = "/dev/net/tun";

/// An interface of the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nic {
    /// Its name in the guest.
    pub(super) name: &'static str,
    /// The last byte of its MAC address, which no other has.
    number: u8,
    /// The device and its properties.
    device: &'static str,
    wire: Wire,
}

/// What hears what.
#[derive(Clone, Copy, Debug)]
enum Wire {
    /// Interfaces of the same hub, which is part of QEMU, and has one queue.
    Hub(u8),
    /// Two queues each: taps, of which the kernel makes a pair for each queue, on one bridge.
    Bridge,
}

/// Without the first, DMA addresses do not go through the kernel's DMA layer, and zero-copy is refused; the
/// second follows from it.
macro_rules! virtio {
    ($more:literal) => {
        concat!("virtio-net-pci,iommu_platform=on,disable-legacy=on", $more)
    };
}

/// All interfaces of a guest.
pub(super) const NICS: &[Nic] = &[
    Nic { name: "virtio0", number: 0, device: virtio!(""), wire: Wire::Hub(0) },
    Nic { name: "virtio1", number: 1, device: virtio!(""), wire: Wire::Hub(0) },
    Nic { name: "noreset0", number: 2, device: virtio!(",queue_reset=off"), wire: Wire::Hub(1) },
    Nic { name: "noreset1", number: 3, device: virtio!(",queue_reset=off"), wire: Wire::Hub(1) },
    Nic { name: "vmxnet0", number: 4, device: "vmxnet3", wire: Wire::Hub(2) },
    Nic { name: "two0", number: 5, device: virtio!(",mq=on"), wire: Wire::Bridge },
    Nic { name: "two1", number: 6, device: virtio!(",mq=on"), wire: Wire::Bridge },
];

impl Nic {
    /// Its MAC address.
    pub(super) fn mac(&self) -> String {
        format!("52:54:00:00:00:{:02x}", self.number)
    }

    /// The tap in the host, where it has one.
    fn tap(&self) -> Option<String> {
        matches!(self.wire, Wire::Bridge).then(|| format!("tap{}", self.number))
    }

    fn arguments(&self) -> [String; 4] {
        let Self { number, device, .. } = self;
        let backend = match self.wire {
            Wire::Hub(hub) => format!("hubport,hubid={hub}"),
            Wire::Bridge => {
                format!("tap,ifname=tap{number},queues=2,script=no,downscript=no,vhost=off")
            }
        };
        [
            "-netdev".into(),
            format!("{backend},id=net{number}"),
            "-device".into(),
            format!("{device},netdev=net{number},mac={}", self.mac()),
        ]
    }
}

/// The host's part of the network: a namespace that only this process knows, with a bridge.
pub(super) struct Host {
    netns: Netns,
    bridge: Link,
}

impl Host {
    /// Makes it. Needs root, and a kernel with bridges and taps.
    pub(super) fn new() -> Result<Self> {
        let netns = Netns::new().context("a network namespace for taps: run as root")?;
        let bridge = Link::bridge(&netns, "bridge0").context("a bridge between taps")?;
        bridge.up()?;
        File::options().read(true).write(true).open(TUN).context(TUN)?;
        Ok(Self { netns, bridge })
    }

    /// Connects the taps, which QEMU makes when it starts.
    fn connect(&self, child: &mut Child) -> Result<()> {
        let deadline = Instant::now() + TAPS;
        for tap in NICS.iter().filter_map(Nic::tap) {
            let link = loop {
                match Link::named(&self.netns, &tap) {
                    Ok(link) => break link,
                    // What it says is in the console's file.
                    Err(_) if child.try_wait()?.is_some() => return Ok(()),
                    Err(error) if Instant::now() >= deadline => return Err(error).context(tap),
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            };
            link.join_bridge(&self.bridge)?;
            link.up()?;
        }
        Ok(())
    }
}

/// Boots a kernel with an initial file system, and waits until the guest ends. What it prints goes to the
/// file `console`. Its exit code says nothing: it is 0 after an oops, too.
pub(super) fn boot(
    kernel: &Kernel,
    image: &Path,
    console: &Path,
    host: &Host,
    limit: Duration,
) -> Result<()> {
    let mut command = command(kernel, image);
    let output = File::create(console).with_context(|| console.display().to_string())?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    // It ends with the thread that starts it, which therefore waits for it.
    die_with_parent(&mut command);
    host.netns.enter(|| watch(&mut command, host, limit))
}

fn command(kernel: &Kernel, image: &Path) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max"]);
    // More than one CPU is slower, where one thread has to emulate each.
    command.args(["-smp", "1", "-m", "1024"]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-serial", "stdio"]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(image);
    command.args([
        "-append",
        "console=ttyS0 loglevel=5 oops=panic panic=-1 nokaslr mitigations=off \
         random.trust_cpu=on no_timer_check tsc=reliable",
    ]);
    for nic in NICS {
        command.args(nic.arguments());
    }
    command
}

fn watch(command: &mut Command, host: &Host, limit: Duration) -> Result<()> {
    let mut child = command.spawn().context("cannot start qemu-system-x86_64")?;
    let result = host.connect(&mut child).and_then(|()| {
        let deadline = Instant::now() + limit;
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                bail!("the guest did not end within {} s", limit.as_secs());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    });
    if result.is_err() {
        child.kill()?;
        child.wait()?;
    }
    result
}
