//! The ELF image in a bzImage: QEMU boots it at once, without the decompressor, which takes seconds where
//! every instruction is emulated.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

/// Writes the kernel in the bzImage `from` to `to`.
pub(super) fn extract(from: &Path, to: &Path) -> Result<()> {
    let image = fs::read(from)?;
    let payload = payload(&image).context("not a bzImage with a payload")?;
    let (compressed, size) =
        payload.split_at_checked(payload.len().wrapping_sub(4)).context("empty")?;
    let size = u32::from_le_bytes(size.try_into()?);
    let program = program(compressed).context("compressed by something unknown")?;

    let packed = to.with_extension("packed");
    fs::write(&packed, compressed)?;
    let status = Command::new(program)
        .arg("-dc")
        .stdin(File::open(&packed)?)
        .stdout(File::create(to)?)
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    fs::remove_file(packed)?;
    let written = fs::metadata(to)?.len();
    if written != u64::from(size) || !fs::read(to)?.starts_with(b"\x7fELF") {
        bail!("{written} bytes came out, not an ELF image of {size}");
    }
    Ok(())
}

/// The compressed kernel and, in its last four bytes, the size of what is in it: where the boot protocol
/// (2.08, Documentation/arch/x86/boot.rst) says.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
    if image.get(0x202..0x206)? != b"HdrS" || word(0x206)? & 0xffff < 0x208 {
        return None;
    }
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + usize::try_from(word(0x248)?).ok()?;
    image.get(start..start + usize::try_from(word(0x24c)?).ok()?)
}

/// What unpacks this.
fn program(compressed: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 3] =
        [(b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4")];
    MAGIC.iter().find(|(magic, _)| compressed.starts_with(magic)).map(|(_, program)| *program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_where_the_header_says() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 2;
        image[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
        image[0x248] = 16;
        image[0x24c] = 5;
        image[3 * 512 + 16..][..5].copy_from_slice(b"hello");
        assert_eq!(payload(&image), Some(b"hello".as_slice()));
        image[0x24c..0x250].copy_from_slice(&u32::to_le_bytes(8192));
        assert_eq!(payload(&image), None);
        image[0x206] = 7;
        image[0x24c..0x250].copy_from_slice(&u32::to_le_bytes(5));
        image[0x207] = 2;
        assert_eq!(payload(&image), None);
    }
}
