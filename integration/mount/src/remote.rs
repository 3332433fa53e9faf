//! A volume over a connection: the client library, seen as a [`Backend`].

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use subvol_client::{LeaseEvent, LeaseEvents, Volume};
use subvol_protocol::request::{FileRequest, Request};
use subvol_protocol::response::Response;

use crate::backend::{Answer, Backend, Event, Failure};

const EIO: i32 = 5;

/// See the module.
pub struct Remote {
    volume: Volume,
    events: LeaseEvents,
}

impl Remote {
    /// Uses a volume that was opened with [`subvol_client::ClientBuilder::leases`].
    #[must_use]
    pub fn new(volume: Volume) -> Self {
        let events = volume.lease_events();
        Self { volume, events }
    }

    /// Says goodbye, so that the server gives locks and inodes back at once.
    pub async fn close(&self) {
        self.volume.clone().close().await;
    }
}

/// A wait for a lock that is taken back when nobody waits any more.
struct Wait {
    remote: Rc<Remote>,
    number: Option<u64>,
}

impl Wait {
    fn is_over(&mut self) {
        self.number = None;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(wait) = self.number {
            self.remote.events.tell(FileRequest::CancelLock { wait });
        }
    }
}

impl Backend for Remote {
    fn root(&self) -> u64 {
        self.volume.inodes().root()
    }

    fn has_leases(&self) -> bool {
        self.events.has_leases()
    }

    fn is_connected(&self) -> bool {
        self.events.is_connected()
    }

    fn call(self: &Rc<Self>, request: FileRequest, payload: Bytes) -> impl Future<Output = Answer> + 'static {
        let number = match &request {
            FileRequest::Lock { wait, .. } => *wait,
            _ => None,
        };
        let mut wait = Wait { remote: Rc::clone(self), number };
        async move {
            let answer = wait.remote.volume.call(Request::File(request), payload).await;
            wait.is_over();
            match answer {
                Ok((Response::File(response), bytes)) => Ok((response, bytes)),
                Ok(_) => Err(Failure(EIO)),
                Err(error) => Err(Failure(error.errno())),
            }
        }
    }

    fn tell(self: &Rc<Self>, request: FileRequest) {
        self.events.tell(request);
    }

    fn recover(self: &Rc<Self>, request: FileRequest) -> impl Future<Output = Answer> + 'static {
        let remote = Rc::clone(self);
        async move {
            match remote.events.recover(request).await {
                Ok(response) => Ok((response, Bytes::new())),
                Err(error) => Err(Failure(error.errno())),
            }
        }
    }

    fn resume(&self) {
        self.events.resume();
    }

    fn next_event(self: &Rc<Self>) -> impl Future<Output = Event> + 'static {
        let remote = Rc::clone(self);
        async move {
            match remote.events.next().await {
                Some(LeaseEvent::Recall { recall, targets }) => Event::Recall { recall, targets },
                Some(LeaseEvent::Lost) => Event::Lost,
                Some(LeaseEvent::Regained { granted, restarted }) => {
                    Event::Regained { leases: granted, restarted }
                }
                None => Event::Ended,
            }
        }
    }
}
