//! Which disk a file is on.

use std::path::Path;

/// The disk of the file or folder at `path` as text: its file system and device, such as `ext4
/// /dev/sda1`, or the number of the device. `None` if the system does not say.
#[must_use]
#[cfg(unix)]
pub fn disk_name(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(path).ok()?.dev();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok();
    let mounted = mounts.and_then(|mounts| mounted(&mounts, major_minor(device)));
    Some(mounted.unwrap_or_else(|| format!("device {device}")))
}

/// See the definition for Unix.
#[must_use]
#[cfg(not(unix))]
pub fn disk_name(_path: &Path) -> Option<String> {
    None
}

/// Linux's encoding of a device number, as `mountinfo` writes it.
#[cfg(unix)]
fn major_minor(device: u64) -> (u64, u64) {
    let major = (device >> 8) & 0xfff | (device >> 32) & 0xffff_f000;
    (major, device & 0xff | (device >> 12) & 0xffff_ff00)
}

/// File system and source of the mount with this device number, from the lines of
/// `/proc/self/mountinfo`.
#[cfg(unix)]
fn mounted(mounts: &str, (major, minor): (u64, u64)) -> Option<String> {
    let number = format!("{major}:{minor}");
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    let (_, kind) = line.split_once(" - ")?;
    let mut words = kind.split(' ');
    let (system, source) = (words.next()?, words.next()?);
    // Names such as `overlay` or `none` are those of many disks.
    source.starts_with('/').then(|| format!("{system} {source}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_named_by_its_mount() {
        let mounts = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      30 22 259:3 / /data rw shared:9 - xfs /dev/nvme0n1p3 rw\n\
                      31 22 0:40 / /over rw - overlay overlay rw\n";
        assert_eq!(mounted(mounts, (8, 1)).as_deref(), Some("ext4 /dev/sda1"));
        assert_eq!(mounted(mounts, (259, 3)).as_deref(), Some("xfs /dev/nvme0n1p3"));
        assert_eq!(mounted(mounts, (0, 40)), None);
        assert_eq!(mounted(mounts, (8, 2)), None);
        assert_eq!(major_minor(0x0803), (8, 3));
        assert!(disk_name(Path::new("/")).is_some_and(|name| !name.is_empty()));
        assert_eq!(disk_name(Path::new("/no/such/file")), None);
    }
}
