use std::io;

use super::unsupported;
use crate::options::Priority;

#[derive(Debug)]
pub(crate) struct PreviousAffinity(());

pub(crate) fn current_cpu() -> Option<usize> {
    None
}

pub(crate) fn bind(_cpus: &[usize]) -> io::Result<PreviousAffinity> {
    Err(unsupported("threads cannot be bound on this system"))
}

pub(crate) fn unbind(_before: &PreviousAffinity) {}

pub(crate) fn set_priority(priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Normal => Ok(()),
        Priority::Low | Priority::Medium | Priority::High | Priority::Realtime => {
            Err(unsupported("priorities cannot be changed on this system"))
        }
    }
}

pub(crate) fn lock_limit() -> Option<u64> {
    None
}
