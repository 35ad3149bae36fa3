//! Downloads one file: resumed where it stopped, and verified before it is used.

use crate::client::{Answer, Client, Failed, header};
use crate::error::{Error, io_error};
use crate::listing::total_size;
use crate::verify::{self, Checksum};
use crate::{ModelName, Progress};
use ring::digest::Context;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

/// Consecutive attempts without a new byte after which a download fails.
const MAX_FRUITLESS: u32 = 5;
/// Wait after the first such attempt; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Bytes per read and write.
const PIECE: usize = 256 << 10;

/// A file to fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch<'a> {
    /// The repository, for messages; `None` for a URL outside of the hub.
    pub(crate) name: Option<&'a ModelName>,
    /// The file's name, for messages.
    pub(crate) file: &'a str,
    pub(crate) url: &'a str,
    pub(crate) size: Option<u64>,
    pub(crate) checksum: Option<&'a Checksum>,
    /// Where the bytes are collected.
    pub(crate) partial: &'a Path,
}

/// A partial download: the file, its length in bytes and the state of its checksum.
struct Partial {
    file: File,
    len: u64,
    context: Option<Context>,
}

/// How an attempt ended.
enum Attempt {
    Complete,
    Stopped(String),
}

impl Fetch<'_> {
    /// Fetches the missing bytes and verifies the whole file. Returns the number of bytes fetched.
    ///
    /// # Errors
    /// The server or the disk fails. If size or checksum are wrong, the partial file is deleted.
    pub(crate) fn run(&self, client: &Client, progress: &mut dyn Progress) -> Result<u64, Error> {
        let mut partial = self.open(progress)?;
        let was_there = partial.len;
        let fetched = self.download(&mut partial, client, progress)?;
        let found = match (self.checksum, partial.context.take()) {
            (Some(expected), Some(context)) => {
                let found = verify::finish(context);
                (found != expected.hex()).then_some(found)
            }
            (_, _) => None,
        };
        let Some(found) = found else {
            partial.file.sync_all().map_err(io_error("write", self.partial))?;
            return Ok(fetched);
        };
        if was_there > 0 {
            // The bytes of an earlier run may be damaged: download all of them once.
            let reason = "the bytes on disk are damaged; starting over".to_owned();
            progress.retry(&reason, Duration::ZERO);
            self.restart(&mut partial)?;
            drop(partial);
            return self.run(client, progress);
        }
        drop(partial);
        std::fs::remove_file(self.partial).map_err(io_error("delete", self.partial))?;
        let expected = self.checksum.map(|checksum| checksum.hex().to_owned()).unwrap_or_default();
        Err(Error::Checksum { file: self.file.to_owned(), expected, found })
    }

    /// Opens or creates the partial file and computes the checksum of its bytes.
    fn open(&self, progress: &mut dyn Progress) -> Result<Partial, Error> {
        let failed = |action| io_error(action, self.partial);
        let options = || {
            File::options().read(true).write(true).create(true).truncate(false).open(self.partial)
        };
        let mut file = options().map_err(failed("create"))?;
        let mut present = file.metadata().map_err(failed("read"))?.len();
        if self.size.is_none_or(|size| present > size) {
            // Without a size, the bytes may belong to another version of the file.
            file.set_len(0).map_err(failed("write"))?;
            present = 0;
        }
        let mut context = self.context();
        let mut len = 0;
        let mut piece = vec![0; PIECE];
        loop {
            let n = read_piece(&mut file, &mut piece).map_err(failed("read"))?;
            if n == 0 {
                break;
            }
            if let Some(context) = &mut context {
                context.update(&piece[..n]);
            }
            len += n as u64;
            progress.check(len, present);
        }
        Ok(Partial { file, len, context })
    }

    fn context(&self) -> Option<Context> {
        let (size, checksum) = (self.size?, self.checksum?);
        Some(checksum.start(size))
    }

    /// Empties the partial file.
    fn restart(&self, partial: &mut Partial) -> Result<(), Error> {
        partial.file.set_len(0).map_err(io_error("write", self.partial))?;
        partial.file.rewind().map_err(io_error("write", self.partial))?;
        partial.len = 0;
        partial.context = self.context();
        Ok(())
    }

    fn download(
        &self,
        partial: &mut Partial,
        client: &Client,
        progress: &mut dyn Progress,
    ) -> Result<u64, Error> {
        let (mut fetched, mut fruitless) = (0, 0);
        progress.file(self.file, self.size, partial.len);
        while self.size.is_none_or(|size| partial.len < size) {
            let before = partial.len;
            let attempt = self.attempt(partial, client, progress)?;
            fetched += partial.len.saturating_sub(before);
            let reason = match attempt {
                Attempt::Complete => break,
                Attempt::Stopped(reason) => reason,
            };
            fruitless = if partial.len > before { 0 } else { fruitless + 1 };
            if fruitless >= MAX_FRUITLESS {
                let (file, received) = (self.file.to_owned(), partial.len);
                return Err(Error::Broken { file, received, reason });
            }
            let wait = match fruitless {
                0 => Duration::ZERO,
                n => FIRST_WAIT * 2u32.pow(n - 1),
            };
            progress.retry(&reason, wait);
            std::thread::sleep(wait);
        }
        Ok(fetched)
    }

    /// Requests the missing bytes and appends those that arrive.
    fn attempt(
        &self,
        partial: &mut Partial,
        client: &Client,
        progress: &mut dyn Progress,
    ) -> Result<Attempt, Error> {
        let from = (partial.len > 0).then_some(partial.len);
        let mut answer = match client.get(self.url, from, self.name) {
            Ok(answer) => answer,
            Err(Failed::Network(reason)) => return Ok(Attempt::Stopped(reason)),
            Err(Failed::Server { host, status }) => {
                return Ok(Attempt::Stopped(format!("{host} answered with status {status}")));
            }
            Err(Failed::Final(error)) => return Err(error),
        };
        if answer.status == 416 {
            self.restart(partial)?;
            return Ok(Attempt::Stopped("the server rejected the byte range".to_owned()));
        }
        self.check_size(&answer)?;
        let start = header(&answer.headers, "content-range");
        let start = start.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
        let resumes = answer.status == 206 && start == Some(partial.len.to_string().as_str());
        if !resumes && partial.len > 0 {
            // The server sends the file from its beginning.
            self.restart(partial)?;
            progress.position(0);
            if answer.status == 206 {
                return Ok(Attempt::Stopped("the server sent another byte range".to_owned()));
            }
        }
        let end = self.size.or(total_size(&answer));
        let mut body = answer.body.as_reader();
        let mut piece = vec![0; PIECE];
        loop {
            let n = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Ok(Attempt::Stopped(e.to_string())),
            };
            if end.is_some_and(|end| partial.len + n as u64 > end) {
                return Err(self.too_long(end.unwrap_or_default(), partial.len + n as u64));
            }
            self.append(partial, &piece[..n])?;
            progress.position(partial.len);
        }
        if end.is_none_or(|end| partial.len == end) {
            return Ok(Attempt::Complete);
        }
        Ok(Attempt::Stopped("the connection was closed".to_owned()))
    }

    fn append(&self, partial: &mut Partial, piece: &[u8]) -> Result<(), Error> {
        if let Err(e) = partial.file.write_all(piece) {
            let full =
                [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&e.kind());
            if !full {
                return Err(io_error("write", self.partial)(e));
            }
            let folder = self.partial.parent().unwrap_or(self.partial).to_owned();
            let needed = self.size.map_or(piece.len() as u64, |size| size - partial.len);
            return Err(Error::Full { folder, needed, free: 0 });
        }
        if let Some(context) = &mut partial.context {
            context.update(piece);
        }
        partial.len += piece.len() as u64;
        Ok(())
    }

    fn check_size(&self, answer: &Answer) -> Result<(), Error> {
        match (self.size, total_size(answer)) {
            (Some(expected), Some(found)) if expected != found => {
                Err(self.too_long(expected, found))
            }
            _ => Ok(()),
        }
    }

    fn too_long(&self, expected: u64, found: u64) -> Error {
        // The bytes cannot be part of the announced file. If deleting fails, the checksum still
        // rejects them.
        let _ = std::fs::remove_file(self.partial);
        Error::Size { file: self.file.to_owned(), expected, found }
    }
}

/// Reads once; a signal does not end the read.
fn read_piece(from: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_a_signal_interrupts_is_repeated() {
        struct Interrupted(u32);
        impl Read for Interrupted {
            fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 < 3 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(piece.len()) }
            }
        }
        assert_eq!(read_piece(&mut Interrupted(0), &mut [0; 7]).unwrap(), 7);
    }
}
