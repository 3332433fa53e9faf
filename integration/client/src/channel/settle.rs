//! What an answer means for handles and history, before the caller sees it.
//!
//! Invariants: every ticket of an answer is remembered; every handle number in an answer is the library's own when the caller sees it;
//! a reported loss is reported once.

use std::collections::VecDeque;

use subvol_protocol::attributes::Lineage;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::request::{FileRequest, HandleRef, OpenFlags};
use subvol_protocol::response::{FileResponse, StepResult};

use super::by_inode::inode_of;
use super::handles::{Handles, ServerHandle, handle_of};

/// The circumstances of an answer.
pub(super) struct Circumstances {
    /// The point of history that the request presented.
    pub presented: Option<Lineage>,
    /// It was sent more than once, so the answer may be that of an earlier connection.
    pub resent: bool,
    /// The volume's epoch on this connection.
    pub epoch: u64,
}

const fn opened_how(request: &FileRequest) -> Option<OpenFlags> {
    match request {
        FileRequest::Open { flags, .. } => Some(*flags),
        FileRequest::Create(create) => create.open,
        FileRequest::CreateUnnamed { open, .. } => Some(*open),
        _ => None,
    }
}

/// The inode and the place of the handle in an answer.
const fn opened_what(answer: &mut FileResponse) -> Option<(u64, &mut u64)> {
    match answer {
        FileResponse::Opened { handle, attributes, .. }
        | FileResponse::Created { handle: Some(handle), attributes, .. } => Some((attributes.inode, handle)),
        _ => None,
    }
}

/// Takes in the answers to the steps of a request (one, if it is no compound). Handles that must be opened again go to `reopen`.
/// Returns whether an fsync that succeeded must be asked again, because changes of yet another life are still unchecked.
pub(super) fn settle(
    handles: &mut Handles,
    steps: &[FileRequest],
    results: &mut [StepResult],
    circumstances: &Circumstances,
    reopen: &mut VecDeque<u64>,
) -> bool {
    let mut numbers: smallvec::SmallVec<[Option<u64>; 4]> = smallvec::SmallVec::new();
    let ran = results.len();
    let mut again = false;
    for (index, (step, result)) in steps.iter().zip(results.iter_mut()).enumerate() {
        let number = match handle_of(step) {
            Some(HandleRef::Explicit(number)) => Some(number),
            Some(HandleRef::FromStep(step)) => numbers.get(usize::from(step)).copied().flatten(),
            None => None,
        };
        let closed_later = steps.get(index + 1..ran).unwrap_or_default().iter().any(|later| {
            matches!(later, FileRequest::Close { handle: HandleRef::FromStep(from), .. } if usize::from(*from) == index)
        });
        numbers.push(match result {
            Ok(answer) if !closed_later => take_handle(handles, step, answer, circumstances, reopen),
            _ => None,
        });
        if let Ok(answer) = &*result
            && let Some(ticket) = answer.ticket()
            && !changed_nothing(step, answer)
        {
            remember(handles, step, answer, number.or(numbers.last().copied().flatten()), ticket);
        }
        again |= check_history(handles, step, number, result, circumstances);
    }
    again
}

fn take_handle(
    handles: &mut Handles,
    step: &FileRequest,
    answer: &mut FileResponse,
    circumstances: &Circumstances,
    reopen: &mut VecDeque<u64>,
) -> Option<u64> {
    let flags = opened_how(step)?;
    let (inode, handle) = opened_what(answer)?;
    // The repeated answer to a change that was sent on two connections carries the handle of the first, which is gone. It is opened
    // again rather than trusted: on this connection that number may be another file's.
    let stale = circumstances.resent && step.is_changing();
    let server = if stale { ServerHandle::Reopening } else { ServerHandle::Live(*handle) };
    *handle = handles.register(inode, flags, server);
    if stale {
        reopen.push_back(*handle);
    }
    Some(*handle)
}

/// A creation that took the file it found: its ticket must not make a handle answer for what it never wrote.
fn changed_nothing(step: &FileRequest, answer: &FileResponse) -> bool {
    matches!(answer, FileResponse::Created { created: false, .. })
        && !opened_how(step).is_some_and(|flags| flags.contains(OpenFlags::TRUNCATE))
}

fn remember(
    handles: &mut Handles,
    step: &FileRequest,
    answer: &FileResponse,
    number: Option<u64>,
    ticket: Lineage,
) {
    handles.all.add(ticket);
    if number.is_none()
        && let Some(history) = &mut handles.inodes
        && history.add(step, answer, ticket)
    {
        return;
    }
    let of_file = matches!(
        step,
        FileRequest::Write { .. }
            | FileRequest::WriteUnprivileged { .. }
            | FileRequest::SetAttributes(_)
            | FileRequest::Allocate { .. }
            | FileRequest::PunchHole { .. }
            | FileRequest::ZeroRange { .. }
    );
    let handle = number.and_then(|number| handles.get_mut(number));
    let has_handle = handle.is_some();
    if let Some(handle) = handle {
        handle.unsynced.add(ticket);
    }
    // Names belong to the volume: an fsync of anything promises them (S2).
    if !(of_file && has_handle) {
        handles.loose.add(ticket);
    }
}

/// Forgets what is durable now or reported lost now.
fn check_history(
    handles: &mut Handles,
    step: &FileRequest,
    number: Option<u64>,
    result: &StepResult,
    circumstances: &Circumstances,
) -> bool {
    let presented = circumstances.presented;
    match step {
        FileRequest::Close { handle: HandleRef::Explicit(number), .. } => {
            handles.remove(*number);
            false
        }
        FileRequest::Fsync { .. } | FileRequest::SyncVolume { .. } => {
            let whole = matches!(step, FileRequest::SyncVolume { .. });
            let opened = number.and_then(|number| handles.get_mut(number)).map(|handle| handle.inode);
            let by_inode = match step {
                FileRequest::Fsync { file, .. } => opened.or_else(|| inode_of(file)),
                _ => None,
            };
            let mut pending = false;
            match result {
                Ok(FileResponse::Synced { durable }) => {
                    let mut settle = |tracker: &mut super::lineage::Tracker| {
                        tracker.settle(presented, *durable);
                        pending |= tracker.has_older_than(circumstances.epoch);
                    };
                    if whole {
                        settle(&mut handles.all);
                    }
                    settle(&mut handles.loose);
                    if let Some(handle) = number.and_then(|number| handles.get_mut(number)) {
                        settle(&mut handle.unsynced);
                    }
                    if let Some(history) = &mut handles.inodes {
                        match by_inode {
                            Some(inode) => {
                                pending |= history.settle(inode, presented, *durable, circumstances.epoch);
                            }
                            None if whole => history.settle_all(presented, *durable),
                            None => {}
                        }
                    }
                }
                Err(error) if error.code == ErrorCode::StaleLineage => {
                    if let Some(presented) = presented {
                        if whole {
                            handles.all.forget_lost(presented, circumstances.epoch);
                        }
                        handles.loose.forget_lost(presented, circumstances.epoch);
                        if let (Some(history), Some(inode)) = (&mut handles.inodes, by_inode) {
                            history.forget_lost(inode, presented, circumstances.epoch);
                        }
                        if let Some(handle) = number.and_then(|number| handles.get_mut(number)) {
                            handle.unsynced.forget_lost(presented, circumstances.epoch);
                        }
                    }
                }
                _ => {}
            }
            pending
        }
        _ => false,
    }
}
