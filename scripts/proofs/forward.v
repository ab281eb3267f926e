(* How many accesses to HBM every run of attention makes: phases_bound, last_phase, compulsory and forward_bound. model.v says
   what a run is. The numbers of steps are those of the proof in flashsim/theory/bounds/forward.py. *)

From Coq Require Import Lia.
Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
From Proofs Require Import arithmetic loomis_whitney model phases.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Forward.
Variables N_q N_k d d_v M : nat.
Variable allowed : {set 'I_N_q * 'I_N_k}.
Notation word := (word N_q N_k d d_v).
Notation run := (run N_q N_k d d_v).
Notation moment := (moment N_q N_k d d_v).
Notation output := ('I_N_q * 'I_d_v)%type.
Implicit Types (chip hbm : {set word}) (steps : run) (l : seq moment) (waiting : {set output}).

(* ------------------------------------------------------------------------------------------------------------- phases *)

Lemma charge_at_most_one (a : moment) : sound M a -> #|charged a| <= 1.
Proof.
case=> _ new _ pending_is; rewrite -(cards1 (about (result (op a)))); apply: subset_leq_card.
rewrite /charged subUset; apply/andP; split.
  by case: (op a) => [[]|[]|||| ] * /=; rewrite ?sub0set.
apply/subsetP => x /imsetP[y]; rewrite inE => /andP[fresh /(subsetP pending_is)].
rewrite inE => /imsetP[w /(subsetP new)]; rewrite in_setU1 => /orP[/eqP -> -> ->|on_chip y_is]; first by rewrite set11.
by case/negP: fresh; rewrite inE; apply/imsetP; exists w.
Qed.

Lemma charges_cons (a : moment) l : charges (a :: l) = #|charged a| + charges l.
Proof. by rewrite /charges big_cons. Qed.

(* Steps of at most x + y charges: the first of them, with x at most, and the others, with y at most. *)
Lemma cut x y chip waiting l : chained M chip waiting l -> waiting \subset outs chip -> #|chip| <= M -> charges l <= x + y ->
  exists l1 l2 chip2 waiting2, [/\ l = l1 ++ l2, chained M chip waiting l1 /\ charges l1 <= x, charges l2 <= y
    & [/\ chained M chip2 waiting2 l2, waiting2 \subset outs chip2 & #|chip2| <= M]].
Proof.
elim: l x chip waiting => [|a l IH] x chip waiting.
  by move=> *; exists [::], [::], chip, waiting; rewrite /charges !big_nil.
rewrite charges_cons => -[before_is sound_a old more] waits room few.
have := charge_at_most_one sound_a => one.
have [] := boolP (#|charged a| <= x) => [enough|]; last first.
  rewrite -ltnNge => none; exists [::], (a :: l), chip, waiting; split=> //=.
    by rewrite /charges big_nil.
  have x0 : x = 0 by apply/eqP; rewrite -leqn0 -ltnS (leq_trans none).
  by rewrite charges_cons; move: few; rewrite x0 add0n.
case: (sound_a) => _ _ room_after pending_is.
have few_left : charges l <= (x - #|charged a|) + y by rewrite addnBAC // leq_subRL ?(leq_trans enough) ?leq_addr.
have [l1 [l2 [chip2 [waiting2 [-> [chain1 few1] few2 others]]]]] := IH _ _ _ more pending_is room_after few_left.
exists (a :: l1), l2, chip2, waiting2; split=> //; split=> //.
by rewrite charges_cons -leq_subRL.
Qed.

(* At most m + 1 phases of terms. The first of them starts with `chip` on chip, the others with M words at most. *)
Lemma phases_terms Y g : M <= Y ->
  (forall chip waiting l,
    chained M chip waiting l -> waiting \subset outs chip -> #|chip| + charges l <= Y -> #|points l| <= g) ->
  forall m chip waiting l, chained M chip waiting l -> waiting \subset outs chip -> #|chip| <= M ->
    #|chip| + charges l <= Y + m * (Y - M) -> #|points l| <= m.+1 * g.
Proof.
move=> more_Y most; elim=> [|m IH] chip waiting l chain waits room few.
  by rewrite mul1n; apply: most chain waits _; rewrite mul0n addn0 in few.
have few' : charges l <= (Y - #|chip|) + m.+1 * (Y - M).
  by rewrite addnBAC ?(leq_trans room) // leq_subRL // (leq_trans (leq_trans room more_Y)) ?leq_addr.
have [l1 [l2 [chip2 [waiting2 [-> [chain1 few1] few2 [chain2 waits2 room2]]]]]] := cut chain waits room few'.
rewrite points_cat (leq_trans (leq_card_setU _ _)) // mulSn leq_add //.
  by apply: most chain1 waits _; rewrite -leq_subRL // (leq_trans room).
apply: (IH _ _ _ chain2 waits2 room2).
by apply: leq_trans (leq_add room2 few2) _; rewrite mulSn addnA subnKC.
Qed.

(* A run makes all terms of allowed pairs. *)
Lemma terms_are_made steps : attention M allowed steps -> #|allowed| * d_v <= #|points (trace set0 steps)|.
Proof.
move=> legal_steps; have -> : #|allowed| * d_v = #|setX allowed [set: 'I_d_v]| by rewrite cardsX cardsT card_ord.
apply/subset_leq_card/subsetP => -[[i k] c]; rewrite !inE andbT /= => wanted.
case: (@term_is_made _ _ _ _ _ _ _ _ _ i k c legal_steps wanted) => [[s _]|[s _]|//]; first by rewrite !inE.
by rewrite inE.
Qed.

(* A phase that touches Y words has g terms at most. *)
Definition at_most Y g := Y * Y < 16 * d * g.+1 /\ Y * Y * Y < 27 * (g.+1 * g.+1).

Lemma few_terms Y g chip waiting l : at_most Y g -> chained M chip waiting l -> waiting \subset outs chip ->
  #|chip| + charges l <= Y -> #|points l| <= g.
Proof.
case=> wide deep chain waits few; rewrite leqNgt; apply/negP => many.
case: (phase_terms chain waits few) => [bound|bound].
- by move: wide; rewrite ltnNge => /negP; apply; apply: leq_trans bound; rewrite leq_mul.
- by move: deep; rewrite ltnNge => /negP; apply; apply: leq_trans bound; rewrite !leq_mul.
Qed.

(* Step 7, and what `flashsim prove` certifies: there are n phases at least, one of Y charges, n - 2 of Y - M, and one more. *)
Theorem phases_bound Y n g steps : attention M allowed steps ->
  M < Y -> 2 <= n -> at_most Y g -> n.-1 * g < #|allowed| * d_v ->
  Y + (n - 2) * (Y - M) < accesses steps.
Proof.
move=> legal_steps more_Y phases2 most few_all; rewrite ltnNge; apply/negP => few.
case: n phases2 few_all few => [//|[//|m]] _; rewrite /= subn2 /= => few_all few.
have chain : chained M set0 (pend set0 steps) (trace set0 steps) by apply: trace_chained legal_steps.
move: few_all; rewrite ltnNge => /negP; apply; apply: leq_trans (terms_are_made legal_steps) _.
apply: (phases_terms (ltnW more_Y)) chain (pend_outs _ _) _ _; rewrite ?cards0 //.
  by move=> chip waiting l; apply: few_terms.
by apply: leq_trans few; apply: leq_trans (charges_are_accesses set0 steps); rewrite leq_addr.
Qed.

(* Its last phase: with x charges it would touch M + x words, and have too few terms. *)
Theorem last_phase Y n g x h steps : attention M allowed steps ->
  M < Y -> 2 <= n -> at_most Y g -> at_most (M + x) h -> n.-1 * g + h < #|allowed| * d_v ->
  Y + (n - 2) * (Y - M) + x < accesses steps.
Proof.
move=> legal_steps more_Y phases2 most most_last few_all; rewrite ltnNge; apply/negP => few.
case: n phases2 few_all few => [//|[//|m]] _; rewrite /= subn2 /= => few_all few.
have chain : chained M set0 (pend set0 steps) (trace set0 steps) by apply: trace_chained legal_steps.
move: few_all; rewrite ltnNge => /negP; apply; apply: leq_trans (terms_are_made legal_steps) _.
have few_charges : charges (trace set0 steps) <= (Y + m * (Y - M)) + x.
  by apply: leq_trans few; apply: leq_trans (charges_are_accesses set0 steps); rewrite leq_addr.
have room : #|(set0 : {set word})| <= M by rewrite cards0.
have [l1 [l2 [chip2 [waiting2 [-> [chain1 few1] few2 [chain2 waits2 room2]]]]]] := cut chain (pend_outs _ _) room few_charges.
rewrite points_cat (leq_trans (leq_card_setU _ _)) // leq_add //.
  apply: (phases_terms (ltnW more_Y)) chain1 (pend_outs _ _) _ _; rewrite ?cards0 //.
  by move=> chip waiting l; apply: few_terms.
by apply: few_terms most_last chain2 waits2 _; rewrite leq_add.
Qed.

(* ---------------------------------------------------------------------------------------------------- what must be moved *)

Definition moves (o : operation N_q N_k d d_v) : {set bool * word} :=
  match o with Load w => [set (false, w)] | Store w => [set (true, w)] | _ => set0 end.

Definition moved steps : {set bool * word} := \bigcup_(step <- steps) moves step.1.

Lemma moved_are_accesses steps : #|moved steps| <= accesses steps.
Proof.
rewrite /moved; elim: steps => [|[o after] rest IH]; first by rewrite big_nil cards0.
rewrite big_cons (leq_trans (leq_card_setU _ _)) // leq_add //.
by case: o => * //=; rewrite ?cards1 ?cards0.
Qed.

(* What has been loaded where a word is known; L has all that is moved. *)
Definition known (L : {set bool * word}) (w : word) : bool :=
  match w with
  | Pair i k s => [forall c in s, ((false, Q i c) \in L) && ((false, K k c) \in L)]
  | Out i c s => [forall k in s, ((false, V k c) \in L) && [forall e, ((false, Q i e) \in L) && ((false, K k e) \in L)]]
  | _ => (false, w) \in L
  end.

Lemma outputs_are_known L hbm chip steps : legal M allowed hbm chip steps ->
  (forall w, w \in chip -> known L w) -> (forall w, w \in hbm -> is_input w || known L w && ((true, w) \in L)) ->
  moved steps \subset L -> forall i k c, (i, k) \in allowed ->
  known L (Out i c (row allowed i)) && ((true, Out i c (row allowed i)) \in L).
Proof.
elim: steps hbm chip => [|[o after] rest IH] hbm chip /=.
  by move=> done _ in_hbm _ i k c wanted; exact: (in_hbm _ (done i k c wanted)).
case=> ok new _ more on_chip in_hbm; rewrite /moved big_cons subUset => /andP[now later].
apply: IH more _ _ later => w.
  move/(subsetP new); rewrite in_setU1 => /orP[/eqP ->|]; last exact: on_chip.
  case: o ok now {new} => [w'|w'|i k c s|i k s t|i k c s|i c s t] /=.
  - move=> /in_hbm /orP[|/andP[]//]; rewrite sub1set.
    by case: w'.
  - by move=> /on_chip.
  - case/and3P => /on_chip /= Qc /on_chip /= Kc part _.
    apply/forallP => c'; apply/implyP; rewrite in_setU1 => /orP[/eqP ->|cs]; first by rewrite Qc Kc.
    case/orP: part => [/eqP none|/on_chip /= /forallP /(_ c')]; first by rewrite none inE in cs.
    by rewrite cs.
  - case/andP => /on_chip /= /forallP one /on_chip /= /forallP other _.
    apply/forallP => c'; apply/implyP; rewrite inE => /orP[cs|ct]; first by move: (one c'); rewrite cs.
    by move: (other c'); rewrite ct.
  - case/and3P => /on_chip /= /forallP whole /on_chip /= in_V part _.
    apply/forallP => k'; apply/implyP; rewrite in_setU1 => /orP[/eqP ->|ks].
      by rewrite in_V; apply/forallP => e; move: (whole e); rewrite inE.
    case/orP: part => [/eqP none|/on_chip /= /forallP /(_ k')]; first by rewrite none inE in ks.
    by rewrite ks.
  - case/andP => /on_chip /= /forallP one /on_chip /= /forallP other _.
    apply/forallP => k'; apply/implyP; rewrite inE => /orP[ks|kt]; first by move: (one k'); rewrite ks.
    by move: (other k'); rewrite kt.
case: o ok now {new} => [w'|w'|????|????|????|????] /= ok now; try exact: in_hbm.
rewrite in_setU1 => /orP[/eqP ->|]; last exact: in_hbm.
by rewrite (on_chip _ ok) -sub1set now orbT.
Qed.

Definition queries : {set 'I_N_q} := [set p.1 | p in allowed].
Definition keys : {set 'I_N_k} := [set p.2 | p in allowed].

(* Every input that matters is read once, and every output written once. *)
Theorem compulsory steps : attention M allowed steps -> 0 < d_v ->
  #|queries| * d + #|keys| * d + #|keys| * d_v + #|queries| * d_v <= accesses steps.
Proof.
move=> legal_steps d_v0; apply: leq_trans (moved_are_accesses steps); set L := moved steps.
have all i k c : (i, k) \in allowed -> known L (Out i c (row allowed i)) && ((true, Out i c (row allowed i)) \in L).
  apply: (outputs_are_known legal_steps) => // w; first by rewrite inE.
  by rewrite inE => ->.
have read i k c : (i, k) \in allowed -> (false, V k c) \in L /\ forall e, (false, Q i e) \in L /\ (false, K k e) \in L.
  move=> wanted; have /andP[/forallP /(_ k)] := all i k c wanted; rewrite inE wanted /= => /andP[in_V /forallP rows] _.
  by split=> // e; apply/andP.
clearbody L; pose c0 : 'I_d_v := Ordinal d_v0.
pose word_of (x : 'I_N_q * 'I_d + ('I_N_k * 'I_d + ('I_N_k * 'I_d_v + 'I_N_q * 'I_d_v))) : bool * word :=
  match x with
  | inl (i, c) => (false, Q i c)
  | inr (inl (k, c)) => (false, K k c)
  | inr (inr (inl (k, c))) => (false, V k c)
  | inr (inr (inr (i, c))) => (true, Out i c (row allowed i))
  end.
have word_inj : injective word_of.
  by move=> [[? ?]|[[? ?]|[[? ?]|[? ?]]]] [[? ?]|[[? ?]|[[? ?]|[? ?]]]] //= [-> ->].
have box (A B : finType) (S : {set A}) (R : {set A * B}) : (forall a b, a \in S -> (a, b) \in R) -> #|S| * #|B| <= #|R|.
  by move=> inside; rewrite -cardsT -cardsX; apply/subset_leq_card/subsetP => -[a b]; rewrite inE => /andP[/inside].
apply: (@leq_trans #|word_of @^-1: L|); last first.
  by rewrite -(card_imset _ word_inj); apply/subset_leq_card/subsetP => w /imsetP[x]; rewrite inE => ? ->.
rewrite !card_sum -!addnA; do !apply: leq_add.
- rewrite -[X in _ * X]card_ord; apply: box => i c /imsetP[[i' k] /(read _ _ c0)[_ /(_ c)[]] in_L _ ->].
  by rewrite !inE.
- rewrite -[X in _ * X]card_ord; apply: box => k c /imsetP[[i k'] /(read _ _ c0)[_ /(_ c)[]] _ in_L ->].
  by rewrite !inE.
- rewrite -[X in _ * X]card_ord; apply: box => k c /imsetP[[i k'] /(read _ _ c)[in_L _] ->].
  by rewrite !inE.
- rewrite -[X in _ * X]card_ord; apply: box => i c /imsetP[[i' k] /(all _ _ c)/andP[_ in_L] ->].
  by rewrite !inE.
Qed.

Lemma pairs_in_box : #|allowed| <= #|queries| * #|keys|.
Proof.
rewrite -cardsX; apply/subset_leq_card/subsetP => p wanted; rewrite inE.
by apply/andP; split; apply: imset_f.
Qed.

(* -------------------------------------------------------------------------------------------- the theorem of docs/prove.md *)

(* Of T terms, one less divided by m phases, where 16 d T and 27 T^2 say that m phases are not enough. *)
Lemma a_part Y m T : 0 < m -> m * (Y * Y) < 16 * d * T -> m * m * (Y * Y * Y) < 27 * (T * T) ->
  at_most Y (T.-1 %/ m) /\ m * (T.-1 %/ m) < T.
Proof.
move=> m_positive wide deep; have T_positive : 0 < T by case: T deep {wide}.
have enough : T <= m * (T.-1 %/ m).+1 by rewrite -{1}(prednK T_positive) mulnC ltn_ceil.
split; last by rewrite -{2}(prednK T_positive) ltnS mulnC leq_trunc_div.
split; first by rewrite -(ltn_pmul2l m_positive) (leq_trans wide) // mulnCA leq_mul.
have square : 0 < m * m by rewrite muln_gt0 m_positive.
by rewrite -(ltn_pmul2l square) (leq_trans deep) // [X in _ <= X]mulnCA leq_mul // mulnACA leq_mul.
Qed.

(* For M >= 128/27 d^2 and Y = 2M: M accesses for each of n = m + 1 phases, where m < 4 * pairs * d * d_v / M^2. *)
Corollary large_memory m steps : attention M allowed steps -> 128 * (d * d) <= 27 * M ->
  1 <= m -> m * (M * M) < 4 * d * (#|allowed| * d_v) -> m.+1 * M < accesses steps.
Proof.
move=> legal_steps large m_positive few; set T := #|allowed| * d_v in few.
have M_positive : 0 < M by apply/ltP; apply: (@some_memory d _ T (m * (M * M))); [apply/leP | apply/ltP].
have [||most all] := @a_part (2 * M) m T m_positive.
- by apply/ltP; move/ltP: few; rewrite -?multE; lia.
- by apply/ltP; apply: (@deep_phases m M d); [apply/leP | apply/ltP].
have double : 2 * M - M = M by rewrite mul2n -addnn addnK.
have -> : m.+1 * M = 2 * M + (m.+1 - 2) * M by rewrite -mulnDl subSS addnBA // add2n subn1.
have := @phases_bound (2 * M) m.+1 _ steps legal_steps _ _ most all; rewrite double; apply=> //.
by rewrite mul2n -addnn -{1}[M]addn0 ltn_add2l.
Qed.

(* The same without n, and where one phase might do: 4 * pairs * d * d_v / M accesses. *)
Theorem forward_bound steps : attention M allowed steps -> 128 * (d * d) <= 27 * M ->
  4 * d * (#|allowed| * d_v) <= M * accesses steps.
Proof.
move=> legal_steps large; set T := #|allowed| * d_v.
have [d_v0|d_v_positive] := posnP d_v; first by have -> : T = 0; rewrite ?muln0 // /T d_v0 muln0.
have [one|many] := leqP (4 * d * T) (M * M).
  apply/leP; apply: (@one_phase M d d_v _ #|queries| #|keys|); apply/leP => //; first exact: pairs_in_box.
  exact: compulsory legal_steps d_v_positive.
have M_positive : 0 < M by apply/ltP; apply: (@some_memory d _ T (M * M)); [apply/leP | apply/ltP].
apply/leP; apply: as_many_phases; [exact/ltP | exact/ltP |].
by move=> m /leP m_positive /ltP few; apply/leP/ltnW; apply: large_memory.
Qed.
End Forward.

(* With every pair allowed: 4 N_q N_k d d_v / M. *)
Corollary forward_bound_all N_q N_k d d_v M (steps : run N_q N_k d d_v) :
  attention M setT steps -> 128 * (d * d) <= 27 * M -> 4 * (N_q * N_k * d * d_v) <= M * accesses steps.
Proof.
move=> legal_steps large; have := forward_bound legal_steps large.
by rewrite cardsT card_prod !card_ord; congr (_ <= _); rewrite !mulnA -!multE; lia.
Qed.
