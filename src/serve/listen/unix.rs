//! UNIX domain sockets.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Server;

/// A bound socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
}

impl BoundSocket {
    /// Listens at `path`. A socket that an earlier process left behind is replaced.
    pub(super) fn bind(path: &Path) -> io::Result<BoundSocket> {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        if is_socket && UnixStream::connect(path).is_err() {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(BoundSocket { listener: Some(listener), path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn serve(mut self, mut server: Server, grace: Duration) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let listener = tokio::net::UnixListener::from_std(listener)?;
        server.accept_all(async || listener.accept().await.map(|(stream, _)| stream)).await;
        drop(listener);
        server.finish(grace).await;
        Ok(())
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Ignore the error: another process may have removed the file.
        let _ = fs::remove_file(&self.path);
    }
}
