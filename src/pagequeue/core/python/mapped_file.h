/* What python/mapped_file.c takes from python/mapped_file_access.c. */
#ifndef PAGEQUEUE_REGION_H
#define PAGEQUEUE_REGION_H

#include "python/module.h"

PyObject *pq_region_read(Region *self, PyObject *args);
PyObject *pq_region_write(Region *self, PyObject *args);
PyObject *pq_region_load(Region *self, PyObject *args);
PyObject *pq_region_store(Region *self, PyObject *args);
PyObject *pq_region_load_half(Region *self, PyObject *args);
PyObject *pq_region_store_half(Region *self, PyObject *args);
PyObject *pq_region_swap_half(Region *self, PyObject *args);
PyObject *pq_region_zero(Region *self, PyObject *args);
PyObject *pq_region_populate(Region *self, PyObject *args);
PyObject *pq_region_forget(Region *self, PyObject *args);
PyObject *pq_region_ahead(Region *self, PyObject *args);
PyObject *pq_region_sync(Region *self, PyObject *args);

#endif
