//! The thread that tells the kernel what to drop.
//!
//! A notification may wait for locks of the kernel, held by requests that only the event loop can answer. So it is sent from a thread
//! of its own, which holds no lock of ours. The loop hears of its end through a queue.

use std::sync::mpsc;
use std::thread;

use rustix::io::Errno;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::kernel::device::Device;

/// Something to drop, in the kernel's numbers.
#[derive(Debug, PartialEq, Eq)]
pub enum Drop {
    /// Attributes and pages of an inode.
    Inode(u64),
    /// A name; also attributes and listing of its directory.
    Name(u64, Box<[u8]>),
    /// All names, and attributes and pages of these inodes.
    All(Vec<u64>),
}

/// What to drop, and the recall that is worked off then.
struct Order {
    drops: Vec<Drop>,
    recall: Option<u64>,
}

/// See the module. The thread ends when this is dropped.
pub struct Notifier {
    orders: mpsc::Sender<Order>,
}

impl Notifier {
    /// Starts the thread. Recalls that are worked off come out of the receiver.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(device: Device) -> std::io::Result<(Self, UnboundedReceiver<u64>)> {
        let (orders, queue) = mpsc::channel();
        let (done, finished) = unbounded_channel();
        thread::Builder::new().name("mount-notify".into()).spawn(move || run(&device, &queue, &done))?;
        Ok((Self { orders }, finished))
    }

    /// Orders drops.
    pub fn drop_these(&self, drops: Vec<Drop>, recall: Option<u64>) {
        // The thread ends only after this.
        let _ = self.orders.send(Order { drops, recall });
    }
}

fn run(device: &Device, queue: &mpsc::Receiver<Order>, done: &UnboundedSender<u64>) {
    while let Ok(order) = queue.recv() {
        for item in order.drops {
            let result = match item {
                Drop::Inode(nodeid) => device.forget_inode(nodeid, true),
                Drop::Name(parent, name) => {
                    let listing = device.forget_inode(parent, true);
                    device.forget_entry(parent, &name).or(listing)
                }
                Drop::All(nodes) => {
                    let names = device.forget_all_names();
                    for nodeid in nodes {
                        let _ = device.forget_inode(nodeid, true);
                    }
                    names
                }
            };
            // What the kernel does not know it does not keep.
            if let Err(error) = result
                && !matches!(error, Errno::NOENT | Errno::NODEV | Errno::NOTCONN)
            {
                tracing::debug!(%error, "a notification was refused");
            }
        }
        if let Some(recall) = order.recall {
            let _ = done.send(recall);
        }
    }
}
