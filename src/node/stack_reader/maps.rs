//! The program and the libraries that are loaded in a process.

use std::fs::{self, File};
use std::io::{self, Read};

/// Maximum number of bytes read of `/proc/PID/maps`; that of a PyTorch process has about 300 KiB.
const MAX_BYTES: u64 = 16 << 20;

/// A loaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Address of its first byte.
    pub start: u64,
    /// End of its address range, exclusive.
    pub end: u64,
    /// Its path as the process sees it.
    pub path: String,
    /// Distinguishes files with the same path.
    pub id: FileId,
}

/// A file: device, inode and path.
pub type FileId = (String, String, String);

impl Loaded {
    /// The last part of its path.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Files that are mapped from offset 0, sorted by address.
///
/// # Errors
///
/// If there is no such process, or access is denied.
pub fn images(pid: u32) -> io::Result<Vec<Loaded>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

/// Path of the program of a process, as in [`images`].
#[must_use]
pub fn program(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.to_string_lossy().into_owned())
}

fn parse(text: &str) -> Vec<Loaded> {
    let mut images: Vec<Loaded> = Vec::new();
    for line in text.lines() {
        // start-end permissions offset device inode   path
        let mut words = line.splitn(6, ' ');
        let (Some(range), Some(_), Some(offset)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (device, inode) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = words.next().unwrap_or_default().trim_start();
        let address = |text| u64::from_str_radix(text, 16).ok();
        let range = range.split_once('-').and_then(|(a, b)| Some((address(a)?, address(b)?)));
        let Some((start, end)) = range.filter(|_| path.starts_with('/')) else {
            continue;
        };
        let is_first = offset.bytes().all(|byte| byte == b'0');
        // A file may be mapped again as data; the first mapping is the loaded image.
        if let Some(image) = images.last_mut().filter(|image| image.path == path) {
            image.end = end;
        } else if is_first && !images.iter().any(|image| image.path == path) {
            images.push(Loaded {
                start,
                end,
                path: path.to_owned(),
                id: (device.to_owned(), inode.to_owned(), path.to_owned()),
            });
        }
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_files_mapped_from_offset_zero() {
        let text = "\
00400000-00420000 r--p 00000000 fe:00 123                                /usr/bin/python 3
00420000-00500000 r-xp 00020000 fe:00 123                                /usr/bin/python 3
01000000-01100000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000001000 r--p 00000000 fe:00 9 /lib/libc.so.6 (deleted)
7f0000001000-7f0000002000 r--p 00000000 fe:00 9 /lib/libc.so.6 (deleted)
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
nonsense
";
        let found = parse(text);
        let words: Vec<_> = found.iter().map(|it| (it.start, it.end, it.file_name())).collect();
        assert_eq!(
            words,
            [
                (0x40_0000, 0x50_0000, "python 3"),
                (0x7f00_0000_0000, 0x7f00_0000_2000, "libc.so.6 (deleted)")
            ]
        );
    }
}
