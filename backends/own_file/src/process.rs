//! Which processes, named in the names of temporary files, still run.

/// Whether no process has this id. Processes of other machines and containers seem dead.
#[must_use]
pub fn is_dead(id: u32) -> bool {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, test_kill_process};
        let id = i32::try_from(id).ok().and_then(Pid::from_raw);
        id.is_some_and(|id| test_kill_process(id) == Err(rustix::io::Errno::SRCH))
    }
    #[cfg(windows)]
    {
        super::windows::is_dead(id)
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = id;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(unix, windows))]
    fn a_process_is_dead_when_it_was_waited_for() {
        assert!(!is_dead(std::process::id()));
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program)
            .arg("--list")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let id = child.id();
        assert!(!is_dead(id));
        child.wait().unwrap();
        drop(child);
        assert!(is_dead(id));
    }
}
