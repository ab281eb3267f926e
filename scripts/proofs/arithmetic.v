(* The inequalities between whole numbers that the proof needs, in plain Rocq. *)

From Coq Require Import Arith ZArith Lia.

Lemma square_le_inv a b : a * a <= b * b -> a <= b.
Proof. nia. Qed.

Lemma two_means x y : 4 * (x * y) <= (x + y) * (x + y).
Proof.
  apply Nat2Z.inj_le. rewrite !Nat2Z.inj_mul, !Nat2Z.inj_add.
  pose proof (Z.square_nonneg (Z.of_nat x - Z.of_nat y)). lia.
Qed.

Lemma three_means x y z : 27 * (x * y * z) <= (x + y + z) * (x + y + z) * (x + y + z).
Proof.
  apply Nat2Z.inj_le. rewrite !Nat2Z.inj_mul, !Nat2Z.inj_add.
  assert (part : forall a b c, (0 <= Z.of_nat a * ((Z.of_nat b - Z.of_nat c) * (Z.of_nat b - Z.of_nat c)))%Z)
    by (intros; apply Z.mul_nonneg_nonneg; [lia | apply Z.square_nonneg]).
  pose proof (part x y z). pose proof (part x x y). pose proof (part x x z). pose proof (part y x z).
  pose proof (part y x y). pose proof (part y y z). pose proof (part z x y). pose proof (part z y z). pose proof (part z x z).
  lia.
Qed.

(* One step of the inequality of Cauchy and Schwarz. *)
Lemma root_sum E U W e u w :
  E * E <= U * W -> e * e <= u * w -> (e + E) * (e + E) <= (u + U) * (w + W).
Proof.
  intros big small.
  assert (product : (E * E) * (e * e) <= (U * W) * (u * w)) by (apply Nat.mul_le_mono; assumption).
  enough (cross : 2 * (E * e) <= U * w + u * W) by nia.
  apply square_le_inv.
  pose proof (two_means (U * w) (u * W)). nia.
Qed.

(* A phase touches a, b, v, o entries of Q, K, V, O, and has c pairs of which something was there. Whole rows are `queries` of
   the a, and `keys` of the b. *)
Lemma most_pairs d a b c p queries keys :
  d * queries <= a -> d * keys <= b -> p <= queries * keys + c ->
  4 * (d * d) * p <= (a + b + c) * (a + b + c) \/ p <= a + b + c.
Proof.
  intros rows_Q rows_K pairs.
  assert (full : (d * queries) * (d * keys) <= a * b) by (apply Nat.mul_le_mono; assumption).
  pose proof (two_means a b).
  assert (some : 4 * (d * d) * p <= (a + b) * (a + b) + 4 * (d * d) * c) by nia.
  set (s := a + b) in *. set (D := 4 * (d * d)) in *.
  assert (d = 0 \/ 0 < D) as [-> | positive] by (unfold D; nia).
  { left. unfold D. lia. }
  destruct (Nat.le_gt_cases (s + c) D).
  - right. assert (D * p <= D * (s + c)) by nia. nia.
  - left. nia.
Qed.

Lemma most_terms Y d a b v o c p queries keys e :
  d * queries <= a -> d * keys <= b -> p <= queries * keys + c -> a + b + v + o + c <= Y -> e * e <= p * v * o ->
  16 * d * e <= Y * Y \/ 27 * (e * e) <= Y * Y * Y.
Proof.
  intros rows_Q rows_K pairs touched terms.
  destruct (most_pairs d a b c p queries keys rows_Q rows_K pairs) as [many | few].
  - left. set (B := a + b + c) in *.
    pose proof (two_means v o). pose proof (two_means B (v + o)).
    assert (4 * d * e <= B * (v + o)).
    { apply square_le_inv.
      assert ((4 * (d * d) * p) * (4 * (v * o)) <= (B * B) * ((v + o) * (v + o))) by (apply Nat.mul_le_mono; assumption).
      nia. }
    assert ((B + (v + o)) * (B + (v + o)) <= Y * Y) by (apply Nat.mul_le_mono; unfold B; lia).
    nia.
  - right. set (B := a + b + c) in *.
    assert (e * e <= B * v * o) by (apply (Nat.le_trans _ _ _ terms); repeat apply Nat.mul_le_mono; lia).
    pose proof (three_means B v o).
    assert ((B + v + o) * (B + v + o) * (B + v + o) <= Y * Y * Y)
      by (repeat apply Nat.mul_le_mono; unfold B; lia).
    lia.
Qed.

(* Phases of Y = 2M, if M is large. *)
Lemma deep_phases m M d T :
  128 * (d * d) <= 27 * M -> m * (M * M) < 4 * d * T -> m * m * (2 * M * (2 * M) * (2 * M)) < 27 * (T * T).
Proof.
  intros large few.
  assert (squares : (m * (M * M)) * (m * (M * M)) < (4 * d * T) * (4 * d * T)) by (apply Nat.mul_lt_mono_nonneg; lia).
  assert (128 * (d * d) * (T * T) <= 27 * M * (T * T)) by (apply Nat.mul_le_mono; lia).
  apply (Nat.mul_lt_mono_pos_l M); [destruct M; nia | nia].
Qed.

Lemma some_memory d M T x : 128 * (d * d) <= 27 * M -> x < 4 * d * T -> 0 < M.
Proof. nia. Qed.

(* Where a phase has room for all, what must move anyway is more. *)
Lemma one_phase M d d_v pairs queries keys accesses :
  pairs <= queries * keys -> queries * d + keys * d + keys * d_v + queries * d_v <= accesses ->
  4 * d * (pairs * d_v) <= M * M -> 4 * d * (pairs * d_v) <= M * accesses.
Proof.
  intros boxes compulsory room. apply square_le_inv.
  pose proof (two_means queries keys). pose proof (two_means d d_v).
  assert ((queries + keys) * (d + d_v) * ((queries + keys) * (d + d_v)) <= accesses * accesses)
    by (apply Nat.mul_le_mono; lia).
  assert (4 * (queries * keys) * (4 * (d * d_v)) <= (queries + keys) * (queries + keys) * ((d + d_v) * (d + d_v)))
    by (apply Nat.mul_le_mono; assumption).
  assert (pairs * (16 * (d * d_v)) <= queries * keys * (16 * (d * d_v))) by (apply Nat.mul_le_mono; lia).
  assert (4 * d * (pairs * d_v) <= accesses * accesses) by lia.
  assert (4 * d * (pairs * d_v) * (4 * d * (pairs * d_v)) <= M * M * (accesses * accesses))
    by (apply Nat.mul_le_mono; assumption).
  lia.
Qed.

(* n, rounded up. *)
Lemma as_many_phases M C accesses :
  0 < M -> M * M < C -> (forall m, 1 <= m -> m * (M * M) < C -> S m * M <= accesses) -> C <= M * accesses.
Proof.
  intros positive many phases. assert (0 < M * M) by nia.
  pose proof (Nat.div_mod (C - 1) (M * M)) as division. pose proof (Nat.mod_upper_bound (C - 1) (M * M)) as rest.
  set (m := (C - 1) / (M * M)) in *.
  assert (1 <= m) by (destruct m; lia).
  assert (S m * M <= accesses) by (apply phases; lia).
  assert (M * (S m * M) <= M * accesses) by (apply Nat.mul_le_mono; lia).
  lia.
Qed.
