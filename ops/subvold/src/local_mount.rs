//! Mounts served inside the server: the front end's event loop runs on the thread of the volume's actor, without a socket in between.
//!
//! Requests that were read together go to the actor in one message, and its answers come back in one: [`Local::pump`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use subvol_actors::{LocalReply, LocalVolume, ServerHandle};
use subvol_mount::backend::{Answer, Backend, Event, Failure};
use subvol_mount::front::{FrontOptions, serve};
use subvol_mount::kernel::device::Device;
use subvol_mount::kernel::mounting::{MountSettings, mount, unmount};
use subvol_protocol::request::{FileRequest, Request};
use subvol_protocol::response::{FileResponse, Push, Response};

const EIO: i32 = 5;

/// A volume and where it is to be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalMount {
    /// VOLUME or TENANT/VOLUME.
    pub volume: String,
    /// An existing directory.
    pub directory: PathBuf,
}

impl std::str::FromStr for LocalMount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((volume, directory)) if !volume.is_empty() && !directory.is_empty() => {
                Ok(Self { volume: volume.to_owned(), directory: directory.into() })
            }
            _ => Err("write VOLUME=DIR, such as work=/mnt/work".to_owned()),
        }
    }
}

/// Directories to be unmounted when the server stops.
pub struct Mounted(Vec<PathBuf>);

impl Drop for Mounted {
    fn drop(&mut self) {
        for directory in &self.0 {
            if let Err(error) = unmount(directory, true) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Mounts volumes of this server.
pub fn start(server: &ServerHandle, mounts: &[LocalMount]) -> Result<Mounted> {
    let mut mounted = Mounted(Vec::new());
    for LocalMount { volume, directory } in mounts {
        let attached = server
            .attach_local(volume, false)
            .with_context(|| format!("the volume {volume} cannot be mounted on {}", directory.display()))?;
        let settings = MountSettings {
            source: format!("subvol:{volume}"),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            no_suid: false,
            no_dev: false,
            no_exec: false,
        };
        let device = mount(directory, &settings)?;
        mounted.0.push(directory.clone());
        serve_on_its_thread(attached, device, settings.source);
    }
    Ok(mounted)
}

fn serve_on_its_thread(volume: LocalVolume, device: Device, source: String) {
    let arbiter = volume.arbiter().clone();
    arbiter.run(move || {
        let backend = Rc::new(Local::new(volume));
        tokio::task::spawn_local(Rc::clone(&backend).pump());
        tokio::task::spawn_local(async move {
            if let Err(Failure(errno)) = backend.begin().await {
                tracing::error!(errno, "a mounted volume gives no leases; it is asked about everything");
            }
            let options = FrontOptions { source: source.clone(), form: "local", ..FrontOptions::default() };
            if let Err(error) = serve(device, Rc::clone(&backend), options).await {
                tracing::error!(%error, %source, "a mount ended");
            }
            backend.volume.close();
        });
    });
}

/// An answer that is awaited.
#[derive(Default)]
struct Slot {
    answer: Option<Result<(Response, Bytes), Failure>>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    last: u64,
    outgoing: Vec<(u64, Request, Bytes)>,
    waiting: FxHashMap<u64, Slot>,
    events: VecDeque<Event>,
    event_waker: Option<Waker>,
    pump: Option<Waker>,
}

/// The way to a volume of the same process.
struct Local {
    volume: LocalVolume,
    leases: Cell<bool>,
    state: RefCell<State>,
}

impl Local {
    fn new(volume: LocalVolume) -> Self {
        Self { volume, leases: Cell::new(false), state: RefCell::default() }
    }

    async fn begin(self: &Rc<Self>) -> Result<(), Failure> {
        match self.call(FileRequest::BeginLeases, Bytes::new()).await? {
            (FileResponse::LeasesBegun { granted, .. }, _) => {
                self.leases.set(granted);
                Ok(())
            }
            _ => Err(Failure(EIO)),
        }
    }

    /// Moves requests to the actor and answers back, until the volume is closed.
    async fn pump(self: Rc<Self>) {
        poll_fn(|context| {
            let outgoing = {
                let mut state = self.state.borrow_mut();
                state.pump = Some(context.waker().clone());
                std::mem::take(&mut state.outgoing)
            };
            if !outgoing.is_empty() {
                self.volume.submit(outgoing);
            }
            while let Some(replies) = self.volume.take(context.waker()) {
                self.deliver(replies);
            }
            if self.volume.is_closed() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut state = self.state.borrow_mut();
        state.events.push_back(Event::Ended);
        if let Some(waker) = state.event_waker.take() {
            waker.wake();
        }
        for slot in state.waiting.values_mut() {
            slot.answer.get_or_insert(Err(Failure(EIO)));
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
    }

    fn deliver(&self, replies: Vec<LocalReply>) {
        let mut state = self.state.borrow_mut();
        for reply in replies {
            match reply {
                LocalReply::Answer { id, response, data } => {
                    // Who gave up waiting left no slot.
                    if let Some(slot) = state.waiting.get_mut(&id) {
                        slot.answer = Some(Ok((response, data)));
                        if let Some(waker) = slot.waker.take() {
                            waker.wake();
                        }
                    }
                }
                LocalReply::Push(Push::Recall { recall, targets }) => {
                    state.events.push_back(Event::Recall { recall, targets });
                    if let Some(waker) = state.event_waker.take() {
                        waker.wake();
                    }
                }
                LocalReply::Push(_) => {}
            }
        }
    }

    fn send(&self, request: Request, payload: Bytes, awaited: bool) -> u64 {
        let mut state = self.state.borrow_mut();
        state.last += 1;
        let id = state.last;
        state.outgoing.push((id, request, payload));
        if awaited {
            state.waiting.insert(id, Slot::default());
        }
        if let Some(pump) = state.pump.take() {
            pump.wake();
        }
        id
    }

    fn ask(self: &Rc<Self>, request: Request, payload: Bytes) -> Call {
        let wait = match &request {
            Request::File(FileRequest::Lock { wait, .. }) => *wait,
            _ => None,
        };
        Call { id: self.send(request, payload, true), local: Rc::clone(self), wait }
    }
}

/// Waits for an answer.
struct Call {
    id: u64,
    local: Rc<Local>,
    /// A wait for a lock, which is taken back when nobody waits any more.
    wait: Option<u64>,
}

impl Future for Call {
    type Output = Result<(Response, Bytes), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let local = Rc::clone(&self.local);
        let mut state = local.state.borrow_mut();
        let Some(slot) = state.waiting.get_mut(&self.id) else { return Poll::Ready(Err(Failure(EIO))) };
        match slot.answer.take() {
            Some(answer) => {
                state.waiting.remove(&self.id);
                self.wait = None;
                Poll::Ready(answer.and_then(|(response, bytes)| match response {
                    Response::Error(error) => Err(Failure(error.code.errno())),
                    response => Ok((response, bytes)),
                }))
            }
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.local.state.borrow_mut().waiting.remove(&self.id);
        if let Some(wait) = self.wait {
            self.local.send(Request::File(FileRequest::CancelLock { wait }), Bytes::new(), false);
        }
    }
}

impl Backend for Local {
    fn root(&self) -> u64 {
        subvol_storage::limits::ROOT_INODE
    }

    fn has_leases(&self) -> bool {
        self.leases.get()
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn call(self: &Rc<Self>, request: FileRequest, payload: Bytes) -> impl Future<Output = Answer> + 'static {
        let call = self.ask(Request::File(request), payload);
        async move {
            match call.await? {
                (Response::File(response), bytes) => Ok((response, bytes)),
                _ => Err(Failure(EIO)),
            }
        }
    }

    fn tell(self: &Rc<Self>, request: FileRequest) {
        self.send(Request::File(request), Bytes::new(), false);
    }

    fn recover(self: &Rc<Self>, request: FileRequest) -> impl Future<Output = Answer> + 'static {
        self.call(request, Bytes::new())
    }

    fn resume(&self) {}

    fn next_event(self: &Rc<Self>) -> impl Future<Output = Event> + 'static {
        let local = Rc::clone(self);
        poll_fn(move |context| {
            let mut state = local.state.borrow_mut();
            match state.events.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    state.event_waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}
