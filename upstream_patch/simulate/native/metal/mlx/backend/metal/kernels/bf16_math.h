// Stands in for a header that overloads members by the address space of `this`, which no CPU compiler knows.
#pragma once
