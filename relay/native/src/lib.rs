//! The way from changes to records of Kafka: value, key, partition and headers of a page at once.
//!
//! Python decides what may be published. What is not written here gives None, and the plain path in
//! `relay.kafka.topic_writer` writes it or refuses it, so that there is one place that refuses (I8).

mod avro;
mod binlog;
mod block;
mod items;
mod keys;
mod reads;
mod records;
mod rows;
mod stored;
mod transactions;
mod vstream;
mod wire;

use pyo3::prelude::*;

/// Raised with every change of what Python calls: `relay.native` takes no other.
const INTERFACE: u32 = 10;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<binlog::BinlogScanner>()?;
    module.add_class::<binlog::ScannedTransactions>()?;
    module.add_class::<block::ChangeBlock>()?;
    module.add_class::<transactions::BlockBuilder>()?;
    module.add_class::<items::CompiledItems>()?;
    module.add_class::<records::RecordWriter>()?;
    module.add_class::<rows::CompiledRows>()?;
    module.add_function(wrap_pyfunction!(reads::copied_parts, module)?)?;
    module.add_function(wrap_pyfunction!(reads::read_rows, module)?)?;
    module.add_class::<vstream::VStreamReader>()?;
    module.add_class::<vstream::WholeTransactions>()?;
    Ok(())
}
