//! The only place that names the runtime: threads with an event loop each (arbiters), tasks on them, the clock, actors.
//!
//! Everything else says [`Mailbox`], [`spawn`], [`now`]. So the runtime can be replaced here, and its traps are dealt with
//! once:
//! - a mailbox is not a bound: whoever sends holds a permit (`session::permits`, in-flight counts);
//! - an actor's mailbox is drained without a budget: an actor never sends to itself directly, only through [`later`];
//! - a panic would only kill one task and leave a dead address: on our threads it aborts the process instead.

use crate::server::StartError;
use std::cell::Cell;
use std::future::Future;
use std::sync::Once;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use subvol_storage::types::Timestamp;

pub use actix::{Actor, Context, Handler, Message};

/// Where an actor's messages go; cheap to clone, usable from every thread.
pub struct Mailbox<A: Actor>(actix::Addr<A>);

impl<A: Actor> Clone for Mailbox<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A: Actor<Context = Context<A>>> Mailbox<A> {
    /// Starts an actor on an arbiter's thread; `make` runs there.
    pub fn start(arbiter: &Arbiter, make: impl FnOnce(Self) -> A + Send + 'static) -> Self {
        use actix::AsyncContext as _;
        Self(A::start_in_arbiter(&arbiter.0, move |context| make(Self(context.address()))))
    }

    /// Queues a message; dropped if the actor has ended.
    pub fn send<M>(&self, message: M)
    where
        M: Message<Result = ()> + Send + 'static,
        A: Handler<M>,
    {
        self.0.do_send(message);
    }

    /// Has the actor ended?
    pub fn is_closed(&self) -> bool {
        !self.0.connected()
    }
}

/// Ends the actor after the current message.
pub fn stop<A: Actor<Context = Context<A>>>(context: &mut Context<A>) {
    use actix::ActorContext as _;
    context.stop();
}

/// Declares messages without an answer: answers come as messages, so that a sender that goes away cancels nothing.
macro_rules! messages {
    ($($name:ty),+ $(,)?) => {
        $(impl $crate::runtime::Message for $name { type Result = (); })+
    };
}
pub(crate) use messages;

/// A thread with an event loop.
#[derive(Clone)]
pub struct Arbiter(actix_rt::ArbiterHandle);

impl Arbiter {
    /// The thread this runs on.
    pub fn current() -> Self {
        Self(actix_rt::Arbiter::current())
    }

    /// Runs `start` on the arbiter's thread. It may spawn tasks there.
    pub fn run(&self, start: impl FnOnce() + Send + 'static) {
        self.0.spawn_fn(start);
    }
}

/// Runs a task on this thread. Called on an arbiter.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    drop(actix_rt::spawn(task));
}

/// Sends a message from here after a pause, at the earliest after the tasks that wait for the thread now.
pub fn later<A, M>(mailbox: &Mailbox<A>, pause: Duration, message: M)
where
    A: Actor<Context = Context<A>> + Handler<M>,
    M: Message<Result = ()> + Send + 'static,
{
    let mailbox = mailbox.clone();
    spawn(async move {
        if pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(pause).await;
        }
        mailbox.send(message);
    });
}

/// The event loops of a server: one for control (connections that have no volume yet, commits), and one per core.
pub struct Loops {
    thread: Option<JoinHandle<()>>,
    control: Arbiter,
    workers: Vec<Arbiter>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Loops {
    /// Starts them.
    pub fn start(workers: usize) -> Result<Self, StartError> {
        abort_on_panic();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("subvold-control".to_owned())
            .spawn(move || {
                mark_thread();
                let system = actix_rt::System::new();
                system.block_on(async move {
                    let arbiters: Vec<actix_rt::Arbiter> = (0..workers)
                        .map(|_| {
                            let arbiter = actix_rt::Arbiter::new();
                            arbiter.spawn_fn(mark_thread);
                            arbiter
                        })
                        .collect();
                    let handles = arbiters.iter().map(|arbiter| Arbiter(arbiter.handle())).collect();
                    let _ = ready.send((Arbiter::current(), handles));
                    let _ = stopped.await;
                    for arbiter in arbiters {
                        arbiter.stop();
                        let _ = arbiter.join();
                    }
                });
            })
            .map_err(StartError::Thread)?;
        let (control, workers) = started.recv().map_err(|_| StartError::Runtime)?;
        Ok(Self { thread: Some(thread), control, workers, stop: Some(stop) })
    }

    /// The loop of everything that is no subvolume.
    pub fn control(&self) -> &Arbiter {
        &self.control
    }

    /// The loops of subvolumes.
    pub fn workers(&self) -> &[Arbiter] {
        &self.workers
    }

    /// Ends all of them, dropping their tasks, and waits.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The time of an operation.
pub fn now() -> Timestamp {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timestamp::new(since.as_secs().cast_signed(), since.subsec_nanos()),
        // A clock before 1970 is a broken clock; files need some time all the same.
        Err(_) => Timestamp::default(),
    }
}

thread_local! {
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// A panic on this thread aborts the process from now on.
pub fn mark_thread() {
    OURS.set(true);
}

/// Starts a thread of the server that is not an event loop.
pub fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(format!("subvold-{name}"))
        .spawn(move || {
            mark_thread();
            run();
        })
        .map_err(StartError::Thread)
}

/// Lets this thread run before others when the cores are busy, as far as the system allows. For threads that mostly wait for
/// the device and that everybody waits for: without it a durable write of 0.2 ms took a scheduler's tick of 4 ms while
/// clients kept both cores busy.
pub fn favour_this_thread() {
    const NICE: i32 = -10;
    // Only with the privilege for it; without, the thread is one among others.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "the thread runs at the usual priority");
    }
}

/// Half-changed state must not go on serving: the process ends, and a restart replays the log. Only threads of a server
/// are concerned, so that tests may panic.
fn abort_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |information| {
            before(information);
            if OURS.try_with(Cell::get).unwrap_or(false) {
                tracing::error!(
                    "{information}; the server aborts, a restart continues from the last durable state"
                );
                std::process::abort();
            }
        }));
    });
}
