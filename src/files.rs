//! Opening of files whose paths come from outside, and decompression of their contents.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// First bytes of a file compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// First bytes of a file compressed with zstd.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Size of the buffers of [`decompressed`].
const BUFFER: usize = 256 << 10;

/// Whether a file that begins with these bytes is compressed.
#[must_use]
pub fn is_compressed(head: &[u8]) -> bool {
    head.starts_with(&GZIP) || head.starts_with(&ZSTD)
}

/// The contents of a stream, decompressed if it is compressed with gzip or zstd. Memory is bounded
/// by the largest window of zstd that is accepted, 128 MiB; the length is not bounded.
///
/// # Errors
///
/// Fails if the beginning cannot be read. Damage is an error of the returned stream.
pub fn decompressed<'a>(stream: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut stream = BufReader::with_capacity(BUFFER, stream);
    let head = stream.fill_buf()?;
    Ok(if head.starts_with(&GZIP) {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(stream)))
    } else if head.starts_with(&ZSTD) {
        Box::new(BufReader::with_capacity(BUFFER, Zstd::new(stream)))
    } else {
        Box::new(stream)
    })
}

/// Decompresses all frames of zstd in a stream.
struct Zstd<R> {
    stream: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(stream: R) -> Self {
        Self { stream, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Begins the next frame; `false`: there is none.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.stream.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.stream) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = (&mut self.stream).take(u64::from(length));
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            self.in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.stream, one);
                decoded.map_err(io::Error::other)?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.in_frame = false;
        }
    }
}

/// Opens a regular file for reading. Other files are rejected: opening a FIFO or a device can block
/// and have side effects.
///
/// # Errors
///
/// Fails if the file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let why = "it is not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Reads a regular file of at most `limit` bytes as text.
///
/// # Errors
///
/// Fails like [`open`], or if the file is longer or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let file = open(path)?;
    if file.metadata()?.len() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    io::read_to_string(file)
}
