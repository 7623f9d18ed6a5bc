BEGIN TRANSACTION;
CREATE TABLE "artifacts" (
        id INTEGER PRIMARY KEY, workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        kind TEXT NOT NULL, name TEXT NOT NULL, sha256 TEXT NOT NULL, changed REAL NOT NULL,
        UNIQUE (workspace, kind, name));
INSERT INTO "artifacts" VALUES(1,'52510e3cbfa1','graph','sample:bert','253a63e72403baece8fa4d16fc1a62756bf80b4705bdcbf16ff33d8a50539838',1.79535846184013438229e+09);
INSERT INTO "artifacts" VALUES(2,'52510e3cbfa1','profile','sample:bert','9b962a94b651165bbffc6858214c35b73ad3a2cab5a408d3a023c502033d113a',1.79535846224678492548e+09);
INSERT INTO "artifacts" VALUES(3,'52510e3cbfa1','partition','sample:bert in 2','03b45b3763d5e010a1dc6aa54f9edd11b065aa939c128d396a2f401d67f5424b',1.79535846224800276754e+09);
INSERT INTO "artifacts" VALUES(4,'52510e3cbfa1','plan_request','review','b08399ad7d15bd9cd9f8177c0496a20c06e22519acab7f5af28ffc72de29432a',1.79535846224893260001e+09);
INSERT INTO "artifacts" VALUES(5,'52510e3cbfa1','plan','review','df6a9e346a695cb016471ce24c7ad22887c70829a2ff9f2c41a35d3f93c0cb90',1.79535846225131702426e+09);
INSERT INTO "artifacts" VALUES(6,'52510e3cbfa1','placement_request','tiny','b830c3d4c43e435b153fcd6ebde7fc7dfbf00840ed135212499024ac25db1bf7',1.79535846225710749623e+09);
INSERT INTO "artifacts" VALUES(7,'52510e3cbfa1','placement','tiny','263c3c8a0b966f2aef3e33b4bfd6127f3ad994edae8f0c55a0cae5ca835cbf92',1.79535846233868432051e+09);
INSERT INTO "artifacts" VALUES(8,'52510e3cbfa1','placement_frontier','tiny','10f8c3fa4851e1724f33f6e4df181dc95161642bdd52609bb3f2bde1f7fe3961',1.79535846238492488862e+09);
INSERT INTO "artifacts" VALUES(9,'52510e3cbfa1','plan_request','swept','c6ed6ebb3fc21d78816ca72fd1c974fb6e634867b40205ea0f9d464ae9bd8e7f',1.79535846238751268383e+09);
INSERT INTO "artifacts" VALUES(10,'52510e3cbfa1','upload','m.py','b7baee35687b612df825c988de119ef62229fc92030d66e7d7c085c934f1e383',1.79535846238818454743e+09);
CREATE TABLE "jobs" (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, workspace TEXT NOT NULL
        REFERENCES workspaces(id) ON DELETE CASCADE,
        title TEXT NOT NULL, target TEXT NOT NULL, parameters TEXT NOT NULL, created REAL NOT NULL);
INSERT INTO "jobs" VALUES(1,'3f405def7fa09f0f','52510e3cbfa1','Trace sample:bert','torchsplit_core.workflow:trace_job','{"source": "sample:bert"}',1.79535846301937079428e+09);
INSERT INTO "jobs" VALUES(2,'f1e069e6e4ee55f9','52510e3cbfa1','Plan review','torchsplit_core.workflow:plan_job','{"request": "review"}',1.7953584630201177597e+09);
INSERT INTO "jobs" VALUES(3,'3c5e7af1ec5b655b','52510e3cbfa1','Explain review','torchsplit_core.workflow:explain_job','{"request": "review"}',1.79535846302059030532e+09);
INSERT INTO "jobs" VALUES(4,'0cfd411ce9758a23','52510e3cbfa1','Place tiny','torchsplit_core.workflow:place_job','{"request": "tiny"}',1.79535846302100396158e+09);
INSERT INTO "jobs" VALUES(5,'994d0f2a1323cf50','52510e3cbfa1','Curve of tiny','torchsplit_core.workflow:placement_frontier_job','{"request": "tiny"}',1.79535846302139186856e+09);
INSERT INTO "jobs" VALUES(6,'6826579f3db73b6a','52510e3cbfa1','Cut sample:bert','torchsplit_core.workflow:partition_job','{"source": "sample:bert", "stages": 2, "objective": "throughput", "link_gb_per_s": 50.0}',1.79535846302177071569e+09);
INSERT INTO "jobs" VALUES(7,'23141a7b36479954','52510e3cbfa1','Compare tiny','torchsplit_core.placement_jobs:ways_job','{"request": "tiny", "sha256": "b830c3d4c43e435b153fcd6ebde7fc7dfbf00840ed135212499024ac25db1bf7"}',1.79535846302902126316e+09);
INSERT INTO "jobs" VALUES(8,'ffed5a6bb57a7b4d','52510e3cbfa1','Prove a what-if of review','torchsplit_core.trial_jobs:trial_job','{"request": "review", "models": {"bert": [2.0, 200.0]}, "counts": [1], "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}',1.79535846302953577043e+09);
INSERT INTO "jobs" VALUES(9,'3258db037798e962','52510e3cbfa1','Fly','torchsplit_core.workflow:fly_job','{"far": true}',1.79535846303005743032e+09);
INSERT INTO "jobs" VALUES(10,'6d338f83b2a40eb8','52510e3cbfa1','Sample models, measured here','torchsplit_core.workflow:samples_job','{"gpus": [["A100-80GB", 2]], "name": "Sample models, measured here"}',1.795358463030466795e+09);
INSERT INTO "jobs" VALUES(11,'45f03265923ef29b','52510e3cbfa1','Sweep swept','torchsplit_core.sweep_jobs:sweep_job','{"request": "swept", "parameter": "gpus", "target": "A30-24GB", "values": [1.0, 2.0, 3.0, 4.0], "time_limit_s": 60.0}',1.79535846303157711027e+09);
INSERT INTO "jobs" VALUES(12,'3d16bb5cd2336306','52510e3cbfa1','Profile m.py:Net','torchsplit_core.workflow:profile_job','{"source": "m.py:Net", "upload": "m.py", "trace_again": true, "trusted_sha256": "b7baee35687b612df825c988de119ef62229fc92030d66e7d7c085c934f1e383"}',1.79535846303195977206e+09);
INSERT INTO "jobs" VALUES(13,'1c0db5ad818504bc','52510e3cbfa1','Profile 2 models','torchsplit_core.workflow:profile_job','{"sources": ["sample:bert", "m.py:Net"], "device": "cpu", "batch_sizes": [1, 2], "point_budget_s": 0.5, "point_limit_s": null, "uploads": {"m.py:Net": {"upload": "m.py", "trusted_sha256": "b7baee35687b612df825c988de119ef62229fc92030d66e7d7c085c934f1e383"}}, "again_since": 5.5}',1.79535846303232336047e+09);
CREATE TABLE points (
        place TEXT NOT NULL, architecture_hash TEXT NOT NULL, kind TEXT NOT NULL, batch_size INTEGER NOT NULL,
        content TEXT NOT NULL, kept REAL NOT NULL,
        PRIMARY KEY (place, architecture_hash, kind, batch_size));
CREATE TABLE settings (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (workspace, key));
INSERT INTO "settings" VALUES('52510e3cbfa1','scenario','"review"');
INSERT INTO "settings" VALUES('52510e3cbfa1','placement tiny answers','"b830c3d4c43e435b153fcd6ebde7fc7dfbf00840ed135212499024ac25db1bf7"');
INSERT INTO "settings" VALUES('52510e3cbfa1','placement curve tiny answers','"b830c3d4c43e435b153fcd6ebde7fc7dfbf00840ed135212499024ac25db1bf7"');
CREATE TABLE sweep_plans (
        workspace TEXT NOT NULL, scenario TEXT NOT NULL, request_sha256 TEXT NOT NULL,
        limit_s REAL NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (workspace, scenario, request_sha256),
        FOREIGN KEY (workspace, scenario) REFERENCES sweeps (workspace, scenario) ON DELETE CASCADE);
INSERT INTO "sweep_plans" VALUES('52510e3cbfa1','swept','f455f77a6e06b4404c4a1c4646408b737ac90cced91699b1be7b09ec90a52982',40.0,'{
 "format": "torchsplit.plan",
 "version": 1,
 "request_sha256": "f455f77a6e06b4404c4a1c4646408b737ac90cced91699b1be7b09ec90a52982",
 "status": "optimal",
 "objective": {
  "kind": "leximin",
  "value": 0.5,
  "sorted_normalised": [
   0.5,
   0.6
  ],
  "bound": 0.5,
  "gap": 0.0,
  "proven_levels": 2
 },
 "gpus": [
  {
   "id": "gpu0",
   "type": "A30-24GB",
   "used": true,
   "slices": [
    {
     "profile": "1g.6gb",
     "start": 0,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 1,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 2,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 3,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    }
   ]
  }
 ],
 "models": [
  {
   "name": "a",
   "variant": "whole",
   "throughput_rps": 10.0,
   "normalised": 0.5,
   "latency_ms": 10.0
  },
  {
   "name": "b",
   "variant": "whole",
   "throughput_rps": 12.0,
   "normalised": 0.6,
   "latency_ms": 10.0
  }
 ],
 "conflicts": [],
 "least_relaxation": null,
 "warnings": [],
 "statistics": {
  "build_s": 0.05663085100002263,
  "solve_s": 0.14509580599997207,
  "verify_s": 0.0002350199999909819,
  "solver": "highs 1.15.1",
  "details": {
   "method": "patterns"
  }
 }
}
');
INSERT INTO "sweep_plans" VALUES('52510e3cbfa1','swept','d2ac25413d944cb25794912365f14b7070571593c7a96782534121966c7bb077',40.0,'{
 "format": "torchsplit.plan",
 "version": 1,
 "request_sha256": "d2ac25413d944cb25794912365f14b7070571593c7a96782534121966c7bb077",
 "status": "optimal",
 "objective": {
  "kind": "leximin",
  "value": 1.6,
  "sorted_normalised": [
   1.6,
   2.0
  ],
  "bound": 1.6,
  "gap": 0.0,
  "proven_levels": 2
 },
 "gpus": [
  {
   "id": "gpu0",
   "type": "A30-24GB",
   "used": true,
   "slices": [
    {
     "profile": "1g.6gb",
     "start": 0,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 1,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 2,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 3,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    }
   ]
  },
  {
   "id": "gpu1",
   "type": "A30-24GB",
   "used": true,
   "slices": [
    {
     "profile": "1g.6gb",
     "start": 0,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 1,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 2,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 3,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    }
   ]
  },
  {
   "id": "gpu2",
   "type": "A30-24GB",
   "used": true,
   "slices": [
    {
     "profile": "1g.6gb",
     "start": 0,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 1,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 2,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 3,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    }
   ]
  }
 ],
 "models": [
  {
   "name": "a",
   "variant": "whole",
   "throughput_rps": 40.0,
   "normalised": 2.0,
   "latency_ms": 10.0
  },
  {
   "name": "b",
   "variant": "whole",
   "throughput_rps": 32.0,
   "normalised": 1.6,
   "latency_ms": 10.0
  }
 ],
 "conflicts": [],
 "least_relaxation": null,
 "warnings": [],
 "statistics": {
  "build_s": 0.004971720999947138,
  "solve_s": 0.4283434339999985,
  "verify_s": 0.03270029700001942,
  "solver": "highs 1.15.1",
  "details": {
   "method": "patterns"
  }
 }
}
');
INSERT INTO "sweep_plans" VALUES('52510e3cbfa1','swept','30380740bd2f731f5329ab7afa996a8166baa231f62be610d8fce146d0c6868f',40.0,'{
 "format": "torchsplit.plan",
 "version": 1,
 "request_sha256": "30380740bd2f731f5329ab7afa996a8166baa231f62be610d8fce146d0c6868f",
 "status": "optimal",
 "objective": {
  "kind": "leximin",
  "value": 1.0,
  "sorted_normalised": [
   1.0,
   1.5
  ],
  "bound": 1.0,
  "gap": 0.0,
  "proven_levels": 2
 },
 "gpus": [
  {
   "id": "gpu0",
   "type": "A30-24GB",
   "used": true,
   "slices": [
    {
     "profile": "1g.6gb",
     "start": 0,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 1,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 2,
     "tenants": [
      {
       "model": "a",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 10.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 3,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    }
   ]
  },
  {
   "id": "gpu1",
   "type": "A30-24GB",
   "used": true,
   "slices": [
    {
     "profile": "1g.6gb",
     "start": 0,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 1,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 2,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    },
    {
     "profile": "1g.6gb",
     "start": 3,
     "tenants": [
      {
       "model": "b",
       "variant": "whole",
       "stage": "whole",
       "share": 1.0,
       "batch_size": 1,
       "processes": 1,
       "throughput_rps": 4.0,
       "memory_gib": null
      }
     ]
    }
   ]
  }
 ],
 "models": [
  {
   "name": "a",
   "variant": "whole",
   "throughput_rps": 30.0,
   "normalised": 1.5,
   "latency_ms": 10.0
  },
  {
   "name": "b",
   "variant": "whole",
   "throughput_rps": 20.0,
   "normalised": 1.0,
   "latency_ms": 10.0
  }
 ],
 "conflicts": [],
 "least_relaxation": null,
 "warnings": [],
 "statistics": {
  "build_s": 0.0005183929998793246,
  "solve_s": 0.031707967000102144,
  "verify_s": 0.0001551609999523862,
  "solver": "highs 1.15.1",
  "details": {
   "method": "patterns"
  }
 }
}
');
CREATE TABLE sweeps (
        workspace TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
        scenario TEXT NOT NULL, asked TEXT NOT NULL, request TEXT NOT NULL, PRIMARY KEY (workspace, scenario));
INSERT INTO "sweeps" VALUES('52510e3cbfa1','swept','{"parameter": "gpus", "target": "A30-24GB", "values": [1.0, 2.0, 3.0], "keys": ["f455f77a6e06b4404c4a1c4646408b737ac90cced91699b1be7b09ec90a52982", "30380740bd2f731f5329ab7afa996a8166baa231f62be610d8fce146d0c6868f", "d2ac25413d944cb25794912365f14b7070571593c7a96782534121966c7bb077"]}','{
 "format": "torchsplit.plan_request",
 "version": 1,
 "gpus": [
  {
   "id": null,
   "type": "A30-24GB",
   "count": 1,
   "layouts": null,
   "cost": 1.0
  }
 ],
 "models": [
  {
   "name": "a",
   "weight": 1.0,
   "demand_rps": 20.0,
   "min_throughput_rps": null,
   "max_latency_ms": null,
   "cap_at_demand": false,
   "variants": [
    {
     "name": "whole",
     "cut_bytes": [],
     "stages": [
      {
       "name": "whole",
       "points": [
        {
         "gpu_type": "A30-24GB",
         "profile": "1g.6gb",
         "batch_size": 1,
         "processes": 1,
         "throughput_rps": 10.0,
         "latency_ms": 10.0,
         "memory_gib": null,
         "basis": "measured"
        },
        {
         "gpu_type": "A30-24GB",
         "profile": "4g.24gb",
         "batch_size": 1,
         "processes": 1,
         "throughput_rps": 30.0,
         "latency_ms": 10.0,
         "memory_gib": null,
         "basis": "measured"
        }
       ]
      }
     ]
    }
   ]
  },
  {
   "name": "b",
   "weight": 1.0,
   "demand_rps": 20.0,
   "min_throughput_rps": null,
   "max_latency_ms": null,
   "cap_at_demand": false,
   "variants": [
    {
     "name": "whole",
     "cut_bytes": [],
     "stages": [
      {
       "name": "whole",
       "points": [
        {
         "gpu_type": "A30-24GB",
         "profile": "1g.6gb",
         "batch_size": 1,
         "processes": 1,
         "throughput_rps": 4.0,
         "latency_ms": 10.0,
         "memory_gib": null,
         "basis": "measured"
        },
        {
         "gpu_type": "A30-24GB",
         "profile": "4g.24gb",
         "batch_size": 1,
         "processes": 1,
         "throughput_rps": 12.0,
         "latency_ms": 10.0,
         "memory_gib": null,
         "basis": "measured"
        }
       ]
      }
     ]
    }
   ]
  }
 ],
 "colocations": [],
 "objective": {
  "kind": "leximin",
  "memory_violation_penalty": null,
  "separation_weight": 0.0
 },
 "sharing": "exclusive",
 "link_gb_per_s": null,
 "max_tenants_per_slice": null,
 "solver": {
  "time_limit_s": 60.0
 }
}
');
CREATE TABLE workspaces (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created REAL NOT NULL);
INSERT INTO "workspaces" VALUES('52510e3cbfa1','review',1.79535846183885407448e+09);
PRAGMA user_version = 4;
COMMIT;
