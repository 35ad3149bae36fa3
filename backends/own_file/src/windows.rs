//! Calls of Windows about files and processes, for which the standard library has no function.
#![allow(unsafe_code, reason = "functions of Windows")]

use std::fs::File;
use std::iter;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::AsRawHandle;
use std::path::{self, Path};
use std::ptr;

use windows_sys::Win32::Foundation::{
    CloseHandle, ERROR_INVALID_PARAMETER, GetLastError, WAIT_OBJECT_0,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, GetDiskFreeSpaceExW, GetFileInformationByHandle,
};
use windows_sys::Win32::System::Threading::{
    OpenProcess, PROCESS_SYNCHRONIZE, WaitForSingleObject,
};

/// Bytes that this user may still write in an existing `folder`, within a quota.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    // A share needs the separator at the end; an absolute path has none that is too many.
    let mut name = path::absolute(folder).ok()?.into_os_string();
    name.push("\\");
    let name: Vec<u16> = name.encode_wide().chain(iter::once(0)).collect();
    let mut free = 0;
    // SAFETY: the name ends with a zero, and the call writes one number.
    let found = unsafe {
        GetDiskFreeSpaceExW(name.as_ptr(), &raw mut free, ptr::null_mut(), ptr::null_mut())
    };
    (found != 0).then_some(free)
}

/// The volume's serial number and the file's number on it.
pub(super) fn identity(file: &File) -> Option<(u64, u64)> {
    let mut found = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open as long as `file` is, and the call fills one structure.
    let filled = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) };
    let number = u64::from(found.nFileIndexHigh) << 32 | u64::from(found.nFileIndexLow);
    (filled != 0).then_some((found.dwVolumeSerialNumber.into(), number))
}

/// Whether no process has this id, or the process that had it has ended.
pub(super) fn is_dead(id: u32) -> bool {
    // SAFETY: the calls have no requirements but a handle that is open, which ends here.
    unsafe {
        let process = OpenProcess(PROCESS_SYNCHRONIZE, 0, id);
        if process.is_null() {
            // Any other reason, such as another user's process, says that it lives.
            return GetLastError() == ERROR_INVALID_PARAMETER;
        }
        let has_ended = WaitForSingleObject(process, 0) == WAIT_OBJECT_0;
        CloseHandle(process);
        has_ended
    }
}
